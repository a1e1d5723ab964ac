"""`t1`: the command line. Commands are loaded when they are called, so that `t1 --help` is quick and loads no torch."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from t1actors.cli.errors import FAILED, WRONG_USAGE, explain

app = App(
    name="t1",
    help="""Train a terminal agent by reinforcement learning, and replay any step of it bit for bit.

    Example: `t1 run --preset smoke`, then `t1 replay runs/latest --step 4`.""",
    suppress_keyboard_interrupt=False,  # we say it, and with which exit status
)
app.command("t1actors.cli.run:run", name="run")
app.command("t1actors.cli.replay:replay", name="replay")
app.command("t1actors.cli.grade:grade", name="grade")
app.command("t1actors.cli.report:report", name="report")
app.command("t1actors.cli.report:runs", name="runs")
app.command("t1actors.cli.doctor:doctor", name="doctor")
app.command("t1actors.cli.serve:serve", name="serve")

log = App(name="log", help="Read and check the log of a run.\n\nExample: `t1 log check runs/latest`")
log.command("t1actors.cli.log:cat", name="cat")
log.command("t1actors.cli.log:tail", name="tail")
log.command("t1actors.cli.log:check", name="check")
log.command("t1actors.cli.log_copies:export", name="export")
log.command("t1actors.cli.log_copies:salvage", name="salvage")
log.command("t1actors.cli.log_copies:sweep", name="sweep")
log.command("t1actors.cli.log_trim:trim", name="trim")
app.command(log)

config = App(name="config", help="Configuration.\n\nExample: `t1 config show --preset t1`")
config.command("t1actors.cli.settings:show", name="show")
app.command(config)

task = App(name="task", help="Tasks: read, check, make.\n\nExample: `t1 task check my-tasks`")
task.command("t1actors.cli.task_show:show", name="show")
task.command("t1actors.cli.task_check:check", name="check")
task.command("t1actors.cli.task_make:make", name="make")
app.command(task)

sandbox = App(name="sandbox", help="Sandboxes.\n\nExample: `t1 sandbox reap runs/latest --dry-run`")
sandbox.command("t1actors.cli.sandbox:reap_command", name="reap")
app.command(sandbox)

image = App(name="image", help="Images that sandboxes are made of.\n\nExample: `t1 image list`")
image.command("t1actors.cli.image:build", name="build")
image.command("t1actors.cli.image:import_", name="import")
image.command("t1actors.cli.image:list_", name="list")
image.command("t1actors.cli.image:prune", name="prune")
app.command(image)

warmstart = App(
    name="warmstart", help="The model that a run starts from.\n\nExample: `t1 warmstart make my-warm-start`"
)
warmstart.command("t1actors.cli.warmstart:demos", name="demos")
warmstart.command("t1actors.cli.warmstart:make", name="make")
app.command(warmstart)

tito = App(name="tito", help="Token in, token out.\n\nExample: `t1 tito stitch calls.jsonl --tokenizer my-model`")
tito.command("t1actors.cli.tito:stitch", name="stitch")
app.command(tito)

LISTS = ("-h", "--help", "log", "config", "task", "sandbox", "image", "warmstart", "tito")
"""With nothing else in it, a command line asks for a list of commands."""


def _load(parent: App) -> None:
    for name in parent:
        if not name.startswith("-"):
            _load(parent[name])


def _have_standard_streams() -> None:
    """A caller may have closed them. What is opened next would get their numbers, and then whatever is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _drop_output() -> None:
    """Nothing may be written at exit either: Python would try again, and fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    _have_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a locale cannot write is written out, and ends no command
            stream.reconfigure(errors="backslashreplace")
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        os.getcwd()
    except FileNotFoundError:
        print("t1: the directory you are in was removed: cd to one that exists", file=sys.stderr)
        return FAILED
    if not [token for token in tokens if token not in LISTS]:
        _load(app)  # so that the list shows what each command says of itself
    try:
        result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        print(f"t1: {error}", file=sys.stderr)
        print("t1: `t1 --help` lists the commands, `t1 COMMAND --help` explains one", file=sys.stderr)
        return WRONG_USAGE
    except BrokenPipeError:
        _drop_output()  # whoever read our output has enough of it
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        # Not a catch-all: what is not an expected error is raised again, with its traceback.
        explained = explain(error)
        if explained is None:
            raise
        print(f"t1: {explained[0]}", file=sys.stderr)
        if isinstance(error, OSError):
            _drop_output()  # it may have been the output itself, a full disk say
        return explained[1]
    return result if isinstance(result, int) else 0
