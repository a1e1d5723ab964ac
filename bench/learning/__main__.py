"""The evidence on learning: does what rises come from learning, and what does each part of the recipe buy?

    python -m bench.learning [PART ...] [--quick] [--list] [--write] [--json FILE]

Parts run in one process and share what they have in common. Prints every table, and every gate with the figure that was
observed for it; the exit status is 1 when a gate does not hold. All parts together in full size (`just learning`) write their
sections of bench/RESULTS.md and their pictures; parts that are named do so with `--write`. One torch thread; costs are CPU
seconds of this process, because a loaded machine says nothing by the clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio

from bench.learning.part import Answer, Context, Gate, Part, process_seconds
from bench.learning.parts import PARTS
from bench.learning.pictures import PICTURES, draw
from bench.machine import describe
from bench.sections import RESULTS, update
from bench.tables import as_json, markdown
from t1actors.sandbox.backend import NamespaceBackend

SECTION = "learning: {name}"


@dataclass(frozen=True)
class Finding:
    """A part's answer, and what it cost in this invocation."""

    part: Part
    answer: Answer
    cpu_s: float
    wall_s: float

    def body(self, machine: dict[str, str], command: str) -> str:
        """Its section of the results, without the heading."""
        where = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}; {machine['busy']}"
        lines = [
            self.part.question,
            f"`{command}`, {datetime.now(UTC):%Y-%m-%d}: {self.cpu_s:.0f} CPU seconds, {self.wall_s:.0f} s ({where})",
            *(markdown(table) for table in self.answer.tables),
            *(f"![{picture.title}](../docs/pictures/{picture.name}.png)" for picture in self.answer.pictures),
        ]
        if self.answer.gates:
            lines.append(gates_text(self.answer.gates))
        return "\n\n".join(lines)


def gates_text(gates: Sequence[Gate]) -> str:
    lines = [f"- {'holds' if gate.holds else '**FAILS**'}: {gate.claim}; observed: {gate.observed}" for gate in gates]
    return "\n".join(["### Gates", "", *lines])


def listing(parts: Sequence[Part]) -> str:
    """A line a part, and their sum."""
    width = max(len(part.name) for part in parts)
    lines = [f"{part.name:{width}s}  {part.cpu_seconds:5d} CPU s  {part.question}" for part in parts]
    return "\n".join([*lines, f"{'all':{width}s}  {sum(part.cpu_seconds for part in parts):5d} CPU s"])


async def measure(parts: Sequence[Part], *, quick: bool, machine: dict[str, str], command: str) -> list[Finding]:
    """Runs the parts one after the other and prints each when it is done."""
    found: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        backend = NamespaceBackend(Path(folder), name="learning")
        async with backend.running():
            context = Context(backend, quick=quick, say=lambda text: print(text, file=sys.stderr, flush=True))
            for part in parts:
                began_s, began_cpu_s = time.perf_counter(), process_seconds()
                answer = await part.run(context)
                finding = Finding(part, answer, process_seconds() - began_cpu_s, time.perf_counter() - began_s)
                found.append(finding)
                print(f"\n## {SECTION.format(name=part.name)}\n\n{finding.body(machine, command)}", flush=True)
    return found


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("names", nargs="*", metavar="PART", help="all by default; --list shows them")
    made.add_argument("--quick", action="store_true", help="tiny sizes: does it work; gates are shown and not enforced")
    made.add_argument("--list", action="store_true", help="the parts, what they ask and what they cost")
    made.add_argument(
        "--write", action="store_true", help="replace the parts' sections of the results and their pictures"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="every figure, as JSON")
    arguments = made.parse_args()
    by_name = {part.name: part for part in PARTS}
    if arguments.list:
        print(listing(PARTS))
        return
    if unknown := sorted(set(arguments.names) - by_name.keys()):
        made.error(f"no part {', '.join(unknown)}; there are {', '.join(by_name)}")
    if arguments.quick and arguments.write:
        made.error("--quick measures nothing: its figures do not belong in the results")
    parts = [by_name[name] for name in arguments.names] or list(PARTS)
    command = " ".join(["python -m bench.learning", *sys.argv[1:]]) if sys.argv[1:] else "just learning"
    machine = describe()
    found = anyio.run(lambda: measure(parts, quick=arguments.quick, machine=machine, command=command), backend="trio")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([as_record(finding) for finding in found], indent=1) + "\n")
    if arguments.write or not (arguments.quick or arguments.names):
        bodies = {SECTION.format(name=f.part.name): f.body(machine, command) for f in found}
        update(RESULTS, bodies)
        for picture in (picture for finding in found for picture in finding.answer.pictures):
            draw(picture, PICTURES)
        print(f"\nwritten to {RESULTS}")
    failed = [gate for finding in found for gate in finding.answer.gates if not gate.holds]
    print(f"\n{len(failed)} of {sum(len(f.answer.gates) for f in found)} gates do not hold")
    sys.exit(1 if failed and not arguments.quick else 0)


def as_record(finding: Finding) -> dict[str, object]:
    return {
        "part": finding.part.name,
        "question": finding.part.question,
        "cpu_seconds": finding.cpu_s,
        "wall_seconds": finding.wall_s,
        "tables": [as_json(table) for table in finding.answer.tables],
        "gates": [asdict(gate) for gate in finding.answer.gates],
    }


if __name__ == "__main__":
    main()
