"""All benchmarks of speed, one after the other, and their sections of `bench/RESULTS.md`.

    python -m bench [NAME ...] [--quick] [--out FILE] [--json FILE]

Each runs in a process of its own, so that none inherits another's threads, memory or caches. About five minutes on two idle
cores. The results file is written when all of them ran in full size; otherwise only where `--out` says. Sections of other
commands (`python -m bench.learning`) stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.sections import RESULTS, update

BENCHMARKS = ("engine", "train", "sandbox", "journal", "log", "run")
HEAD = """# Results

Written by commands; don't edit. Speed: `just bench`, {date}, {minutes:.1f} minutes, `{command}`. Learning: `just learning`;
each of its sections says when and where it was measured.

A cell with brackets is a median and (smallest .. largest) of several rounds; what is compared ran in turns, and a ratio was
taken round by round. CPU seconds count user and system time. docs/benchmarks.md says how each figure is measured.
"""


def run_one(name: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    """What ``bench.NAME`` found. Raises ``CalledProcessError``."""
    path = folder / f"{name}.json"
    command = [sys.executable, "-m", f"bench.{name}", "--json", str(path), *(["--quick"] if quick else [])]
    subprocess.run(command, check=True, cwd=Path(__file__).parent.parent, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(path.read_text())


def head(found: Sequence[dict[str, Any]], *, command: str, seconds: float) -> str:
    """What stands above the sections. The machine is the first benchmark's; how busy it was is each one's own."""
    lines = [HEAD.format(date=f"{datetime.now(UTC):%Y-%m-%d}", minutes=seconds / 60, command=command)]
    if any(one["quick"] for one in found):
        lines.append("**Tiny sizes (`--quick`): these figures show that the benchmarks work, nothing else.**\n")
    lines += ["| machine | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in found[0]["machine"].items() if key != "busy"]
    lines += [f"| busy before {one['benchmark']} | {one['machine']['busy']} |" for one in found]
    return "\n".join(lines)


def section(one: dict[str, Any]) -> str:
    """A benchmark's section, without its heading."""
    return "\n\n".join([f"`python -m bench.{one['benchmark']}`, {one['seconds']:.0f} s", *one["markdown"]])


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    made.add_argument("--quick", action="store_true", help="tiny sizes: do they work, not how fast is it")
    made.add_argument("--out", type=Path, metavar="FILE", help=f"the results file; {RESULTS.name} by default")
    made.add_argument("--json", type=Path, metavar="FILE", help="every figure of every benchmark, as JSON")
    arguments = made.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        made.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    began_s = time.perf_counter()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or BENCHMARKS:
            print(f"\n## {name}\n", flush=True)
            found.append(run_one(name, Path(folder), quick=arguments.quick))
    command = " ".join(["just bench", *sys.argv[1:]])
    out = arguments.out or (None if arguments.quick or arguments.names else RESULTS)
    if out is not None:
        above = head(found, command=command, seconds=time.perf_counter() - began_s)
        update(out, {one["benchmark"]: section(one) for one in found}, head=above)
        print(f"\nwritten to {out}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
