"""`t1 log`: a run's events, to read and to check."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed, WrongUsage
from t1actors.cli.log_lines import Choice
from t1actors.cli.numbers import Whole, at_least
from t1actors.cli.progress import Progress
from t1actors.events import RunFailed, RunFinished
from t1actors.log.archive import excerpt_of
from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_blobs, check_journals, run_digest, unacknowledged
from t1actors.log.filelog import FileLog
from t1actors.log.merged import entries, merged
from t1actors.log.snapshots import damaged_snapshots
from t1actors.observe.follow import follow, open_log, open_run
from t1actors.observe.invariants import Finding, Invariants
from t1actors.observe.quantities import size
from t1actors.observe.references import References
from t1actors.runtime.snapshots import stranded
from t1actors.runtime.trim_note import trim_note

RunDirectory = Annotated[Path, Parameter(help="A run's directory, such as runs/latest.")]
Trial = Annotated[str | None, Parameter(help="Only this trial, such as s3.t17.")]
Step = Annotated[Whole | None, Parameter(help="Only this step.")]
ActorName = Annotated[str | None, Parameter(help="Only this actor's journal.")]
Kinds = Annotated[
    tuple[str, ...],
    Parameter(help="Only events of this kind; may be given again.", negative=(), show_default=False),
]
AsJson = Annotated[
    bool,
    Parameter(
        name="--json", help="One JSON object a line, in full (bytes as base64).", negative=(), show_default=False
    ),
]


def cat(
    run: RunDirectory,
    *,
    trial: Trial = None,
    step: Step = None,
    actor: ActorName = None,
    kind: Kinds = (),
    as_json: AsJson = False,
) -> None:
    """Print a run's events in causal order: time, journal, sequence, kind, fields.

    Example: `t1 log cat runs/latest --trial s3.t17`
    """
    log = open_log(run)
    choice = _choice(run, log, trial, step, actor, kind, as_json=as_json)
    for entry in merged(log):
        line = choice.shown(entry)
        if line is not None:
            print(line)
    if not choice.found:
        raise CommandFailed(choice.nothing(run))


def tail(
    run: RunDirectory,
    *,
    lines: Annotated[Whole, Parameter(name=["--lines", "-n"], help="How many of the last events to print.")] = 20,
    go_on: Annotated[
        bool,
        Parameter(
            name=["--follow", "-f"],
            help="Then print events as they are recorded, until the run stops.",
            negative=(),
            show_default=False,
        ),
    ] = False,
    trial: Trial = None,
    step: Step = None,
    actor: ActorName = None,
    kind: Kinds = (),
    as_json: AsJson = False,
) -> None:
    """Print the last events of a run, and with -f those to come.

    Example: `t1 log tail -f runs/latest --kind StepOpened --kind ActorUpdated`
    """
    at_least(0, "--lines", lines)
    log = open_log(run)
    choice = _choice(run, log, trial, step, actor, kind, as_json=as_json)
    last: deque[str] = deque(maxlen=lines)

    async def print_all() -> None:
        caught_up = False
        async with aclosing(follow(log, ended=lambda: not go_on)) as batches:
            async for frames in batches:
                if not frames and not caught_up:
                    caught_up = True
                    _print_all(last)
                for entry in entries(frames):
                    line = choice.shown(entry)
                    if line is not None and caught_up:
                        print(line, flush=True)
                    elif line is not None:
                        last.append(line)
        _print_all(last)

    anyio.run(print_all, backend="trio")
    if not go_on and not choice.found:
        raise CommandFailed(choice.nothing(run))


def _print_all(lines: deque[str]) -> None:
    """Prints and forgets them."""
    while lines:
        print(lines.popleft(), flush=True)


def _choice(
    run: Path,
    log: FileLog,
    trial: str | None,
    step: int | None,
    actor: str | None,
    kind: tuple[str, ...],
    *,
    as_json: bool,
) -> Choice:
    if actor is not None and actor not in log.journals():
        raise WrongUsage(f"--actor {actor}: {run} has no such journal; it has {', '.join(log.journals())}")
    return Choice(trial=trial, step=step, actor=actor, kinds=kind, as_json=as_json)


def check(run: RunDirectory) -> int:
    """Check a run: journals and blobs whole, inputs applied once and in order, every invariant between events, and whether
    a run that was trimmed can be gone on with.

    May run beside a live run. Exit status 0: no error (notes are not errors). 1: errors, each with its place.

    Example: `t1 log check runs/latest`
    """
    log = open_run(run)
    blobs = FileBlobs(run / "blobs")
    with Progress("journals", count=size) as progress:
        checked = check_journals(log, progress)
    problems = checked.problems
    note = trim_note(run)
    trimmed = {} if problems else {name: first for name in log.journals() if (first := log.kept_from(name))}
    with Progress("blobs") as progress:
        problems += check_blobs(blobs, progress)
    for problem in problems:
        print(f"error  {problem.message}")
    findings: list[Finding] = []
    lost: list[str] = []
    events = 0
    if problems:
        advice = "first make journals and blobs whole; `t1 log salvage` makes a run of what is"
        print(f"the events themselves were not checked: {advice}", file=sys.stderr)
    else:
        invariants = Invariants(first_step=note.kept_step, trimmed=frozenset(trimmed))
        excerpt = excerpt_of(run) is not None
        references = References(blobs, excerpt=excerpt, first_step=note.kept_step)
        goes_on = not excerpt
        with Progress("events") as progress:
            total = log.events()
            for entry in merged(log):
                progress(invariants.events, total)
                event = invariants.apply(entry)
                if event is not None:
                    references.apply(entry, event)
                    goes_on = goes_on and not isinstance(event, RunFinished | RunFailed)
        findings = [*invariants.finish(), *references.finish()]
        events = invariants.events
        lost = _lost(log, checked.reads) if goes_on else []
    for finding in findings:
        print(f"{finding.severity:<6} {finding.text}")
    for message in lost:
        print(f"error  {message}")
    for name, behind in unacknowledged(log).items():
        print(
            f"note   {name}: {size(behind)} behind its durable end were not checked; after a lost machine that end may lag: "
            f"`t1 run --resume {run}` finds out, and puts it right"
        )
    for name, first in trimmed.items():
        print(f"note   {name}: kept from event {first:,} on; what was before it was trimmed")
    if note.first_step:
        print(f"note   {note.text(None)}")
    errors = len(problems) + len(lost) + sum(f.severity == "error" for f in findings)
    journals = len(log.journals())
    print(f"{'clean' if not errors else f'{errors} errors'}: {journals} journals, {events:,} events")
    if not problems:  # of journals whose frames do not follow from each other a digest says nothing
        print(f"digest {run_digest(checked.digests)}")
    return 1 if errors else 0


def _lost(log: FileLog, reads: Mapping[str, Iterable[str]]) -> list[str]:
    """A line for each actor that could not go on from the snapshots that it has."""
    lines: list[str] = []
    for name, reasons in stranded(log, reads).items():
        directory = log.directory(name)
        reasons += [f"{path.name} is damaged" for path in damaged_snapshots(directory)]
        holder = log.holder(name)
        advice = (
            f"process {holder.pid} is that actor: stop the run cleanly (Ctrl-C), and it keeps one"
            if holder is not None
            else "restore one from a copy of the run, or go on with the copy; as it is the run can be read and replayed, and "
            "not resumed"
        )
        lines.append(
            f"actor {name} cannot be recovered: it reads what was trimmed, so it has to go on from a snapshot, and none in "
            f"{directory} can be used: {'; '.join(reasons) or 'there is none'}; {advice}"
        )
    return lines
