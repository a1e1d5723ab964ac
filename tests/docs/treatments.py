"""What the tests do with each command that the documentation names: the one table to add a line to.

A command that no line matches fails the tests, so that nothing is documented that nobody ever ran.
"""

import re
from dataclasses import dataclass
from typing import Literal

Action = Literal["run", "slow", "parse", "recipe", "script", "outside"]


@dataclass(frozen=True)
class Treatment:
    """``action`` for commands that begin as ``pattern`` says; ``why`` where they are not simply run.

    run: executed in a directory with a recorded run. slow: so too, in the second tier. parse: its arguments are given to the
    command line's own parser. recipe: the Justfile has it, takes these arguments, and the command it makes of them parses.
    script: the module or file is there and knows the options. outside: belongs to the reader's system.
    """

    pattern: str
    action: Action
    why: str = ""


TREATMENTS = (
    Treatment(r"t1 report\b", "slow", "draws all pictures; tests/observe draws those of a small run"),
    Treatment(r"t1 log tail -f ", "parse", "follows; tests/cli/test_log_tools.py runs it"),
    Treatment(r"t1 sandbox\b", "parse", "removes things; tests/cli/test_sandbox_reap.py runs it"),
    Treatment(r"t1 (log|runs|config|doctor|task|replay)\b", "run"),
    Treatment(r"t1 image (list|prune)\b", "run"),
    Treatment(r"t1 image\b", "parse", "needs an archive or a registry; tests/cli/test_image_commands.py runs them"),
    Treatment(r"t1 grade .*--all", "slow", "grades every trial of the recorded run again"),
    Treatment(r"t1 grade RUN ", "parse", "needs a trial; tests/cli/test_grade.py grades some"),
    Treatment(r"t1 grade\b", "run"),
    Treatment(r"t1 run\b", "parse", "a run of its own; tests/loop and the slow tier run some"),
    Treatment(r"t1 warmstart\b", "parse", "minutes of CPU; tests/train makes a tiny warm start"),
    Treatment(r"t1 serve\b", "parse", "serves until it is stopped; tests/cli/test_serve.py runs it"),
    Treatment(r"t1 tito\b", "parse", "needs recorded calls; tests/cli/test_tito.py runs it"),
    Treatment(r"t1 (--help|COMMAND --help)", "parse", "every command's help has a test of its own"),
    Treatment(r"just [a-z]", "recipe", "sets up a .venv first"),
    Treatment(r"just --list$", "outside", "just's own"),
    Treatment(r"python -m bench\b", "script", "minutes of CPU; tests/bench tests the measuring"),
    Treatment(r"python -m tests\.simulation\b", "outside", "a part of the tests; tests/simulation runs it"),
    Treatment(r"python -m tests\.tito\.golden_renders\b", "outside", "needs other people's templates"),
    Treatment(r"python (tools|examples)/\w+\.py\b", "script", "they have tests of their own"),
    Treatment(
        r"python -m t1actors\.runtime\.process RUN(_DIR)? NAME ", "outside", "needs a run; tests/runtime starts it so"
    ),
    Treatment(r"python3 -I -S /tests/", "outside", "what a grader runs inside its sandbox"),
    Treatment(r"python -(m (pytest|venv)|I)$", "outside", "what tests ask for inside their sandbox"),
    Treatment(r"pip install |python3 -m venv |apt-get |debootstrap |tar -C base ", "outside", "installs something"),
    Treatment(r'D="\$PWD/docker"$|dockerd ', "outside", "a daemon; tests/docker_daemon.py starts such a one"),
)
"""The first line that matches decides."""

EXAMPLE_STEP, RECORDED_STEP = 12, 5
"""The documentation's step is one of a demonstration run. The recorded run is shorter: its step 5 stands for it."""


def treatment(command: str) -> Treatment | None:
    return next((t for t in TREATMENTS if re.match(t.pattern, command)), None)


def plain(command: str) -> str:
    """Without where a program lies: `.venv/bin/t1` is `t1`, `~/.just/bin/just` is `just`."""
    return re.sub(r"^(?:\.venv/bin|~/\.just/bin)/", "", command)


def on_the_recorded_run(text: str) -> str:
    """The same of the recorded run's step."""
    return re.sub(rf"\b(s?){EXAMPLE_STEP}\b", rf"\g<1>{RECORDED_STEP}", text)
