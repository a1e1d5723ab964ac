"""A real Debian as base, where `debootstrap` and a mirror are: dpkg, users, services' directories, a compiler-less build."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

import anyio
import pytest

from t1actors.images.build import BuildLimits, build
from t1actors.images.sources import import_source
from t1actors.images.store import ImageStore
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import Limits, RunRequest, SandboxSpec
from t1actors.tasks.dockerfile import parse

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("host_makes_sandboxes")]

DOCKERFILE = """FROM debian:12
ENV DEBIAN_FRONTEND=noninteractive
WORKDIR /app
RUN useradd -m -s /bin/bash service && install -d -o service -g service -m 700 /var/lib/service
RUN dpkg --remove --force-depends --force-remove-essential e2fsprogs && ! test -e /sbin/mke2fs
RUN su service -c 'id -un > /var/lib/service/who' && apt-get --version && perl -e 'print "perl\\n"' > perl.txt
"""


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("debootstrap") is None:
        pytest.skip("needs debootstrap: apt-get install debootstrap")
    root = tmp_path_factory.mktemp("debian") / "root"
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", "bookworm", str(root)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"needs a Debian mirror: {done.stdout[-300:]}")
    return root


def test_a_debian_is_imported_built_on_and_used(debian: Path, tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    store.set_name("debian:12", import_source(store, debian), source="debootstrap")
    recipe = parse(DOCKERFILE, "Dockerfile")
    limits = BuildLimits(deadline_s=120.0, memory_mb=512, disk_mb=512)
    built = anyio.run(partial(build, store, recipe, tmp_path, limits=limits, host_base=False), backend="trio")

    async def look() -> str:
        backend = NamespaceBackend(tmp_path / "sandboxes", name="test", images=store)
        async with backend.running():
            await backend.create(SandboxSpec(key="one", base=built.digest, workdir="/app", limits=Limits(disk_mb=128)))
            commands = (
                "cat /var/lib/service/who perl.txt; stat -c '%U %a' /var/lib/service; dpkg -l | grep -c '^ii'; "
                "apt-get remove -y --allow-remove-essential hostname >/dev/null 2>&1; hostname 2>&1 | grep -c 'not found'"
            )
            result = await backend.run("one", RunRequest(key="1", command=commands, limit_s=60.0))
            await backend.kill("one")
        return result.text

    said = anyio.run(look, backend="trio").splitlines()
    assert said[:3] == ["service", "perl", "service 700"]
    assert int(said[3]) > 60
    assert said[4] == "1"
