"""`t1 doctor`: what this machine can do, what it lacks, and the fix."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter

from t1actors.cli.checks import Check, ability_checks, bad, grouped, machine_checks, sandbox_checks
from t1actors.cli.checks_docker import docker_checks
from t1actors.cli.checks_images import image_checks
from t1actors.cli.checks_kernels import of_kernels
from t1actors.cli.checks_python import of_optional_parts
from t1actors.config import DockerConfig, SandboxConfig
from t1actors.runtime.numerics import Search

MARKS = {"good": "ok", "warning": "warn", "bad": "BAD", "absent": "-"}
WIDTH = 21


def doctor(
    directory: Annotated[Path, Parameter(name=("--dir", "--directory"), help="Where runs would be kept.")] = Path(
        "runs"
    ),
    *,
    docker_socket: Annotated[
        str, Parameter(help="The Docker daemon to look at, if there is one.")
    ] = DockerConfig.socket,
    docker_image: Annotated[str, Parameter(help="Its image that stands in for a task's own.")] = DockerConfig.image,
    store: Annotated[Path, Parameter(help="Where images are kept: `sandbox.images` of a run's configuration.")] = Path(
        SandboxConfig.images
    ),
    as_json: Annotated[bool, Parameter(name="--json", negative=(), help="Print one JSON object.")] = False,
) -> int:
    """Look at this machine, make one whole sandbox, run into each of its limits, give one a network and build an image; make
    sandboxes with Docker too, where it is.

    Exit status 0: a run can start here. 1: something is missing, and the line says what to do.

    Example: `t1 doctor`
    """
    checks = all_checks(directory, DockerConfig(socket=docker_socket, image=docker_image), store)
    missing = bad(checks)
    if as_json:
        print(json.dumps({"ready": not missing, "checks": [asdict(check) for check in checks]}, indent=1))
    else:
        print("\n".join(lines(checks)))
    return 1 if missing else 0


def all_checks(directory: Path, docker: DockerConfig, store: Path) -> list[Check]:
    """Every check; a whole sandbox is made only where its parts work."""
    with Search("auto", env={"OMP_NUM_THREADS": "1"}) as search:  # loads torch, beside the other checks
        machine, parts = machine_checks(directory), ability_checks()
        # Where a part is missing the whole cannot be made, and would only say so once more.
        whole = [] if bad(parts) else trio.run(lambda: sandbox_checks(thorough=True))
        images = image_checks(store) if whole and not bad(whole) else []
        containers = trio.run(lambda: docker_checks(docker, thorough=True))
        kernels = grouped("kernels", of_kernels(search))
    return [*machine, *kernels, *parts, *whole, *images, *containers, *grouped("optional", of_optional_parts())]


def lines(checks: list[Check]) -> list[str]:
    """Group by group: verdict, what, what was found, and under it the fix."""
    shown: list[str] = []
    for group, members in groupby(checks, key=lambda check: check.group):
        shown.append(group)
        for check in members:
            shown.append(f"  {MARKS[check.verdict]:<4} {check.name:<{WIDTH}} {check.found}")
            if check.fix:
                shown.append(f"{'':<{WIDTH + 8}} -> {check.fix}")
    missing = bad(checks)
    shown.append("a run can start here" if not missing else f"not ready: {', '.join(c.name for c in missing)}")
    return shown
