"""`t1 log`: a run's events, to read and to check.

`cat` shows events with a MessagePack reader that knows no schema, so that a run written by a newer version can be read.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

import msgpack
from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed, WrongUsage
from t1actors.cli.numbers import Whole
from t1actors.cli.progress import Progress
from t1actors.events import EventMalformed, UnknownEvent, decode
from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_blobs, check_journals, run_digest
from t1actors.log.merged import Entry, merged
from t1actors.observe.attribution import Attribution
from t1actors.observe.follow import open_run
from t1actors.observe.invariants import Finding, Invariants
from t1actors.observe.quantities import one_line, size
from t1actors.observe.references import References

RunDirectory = Annotated[Path, Parameter(help="A run's directory, such as runs/latest.")]
SHOWN_CHARS = 60
SHOWN_ITEMS = 4


def cat(
    run: RunDirectory,
    *,
    trial: Annotated[str | None, Parameter(help="Only this trial, such as s3.t17.")] = None,
    step: Annotated[Whole | None, Parameter(help="Only this step.")] = None,
    actor: Annotated[str | None, Parameter(help="Only this actor's journal.")] = None,
    kind: Annotated[
        tuple[str, ...],
        Parameter(help="Only events of this kind; may be given again.", negative=(), show_default=False),
    ] = (),
    as_json: Annotated[
        bool,
        Parameter(
            name="--json", help="One JSON object a line, in full (bytes as base64).", negative=(), show_default=False
        ),
    ] = False,
) -> None:
    """Print a run's events in causal order: time, journal, sequence, kind, fields.

    Example: `t1 log cat runs/latest --trial s3.t17`
    """
    log = open_run(run)
    if actor is not None and actor not in log.journals():
        raise WrongUsage(f"--actor {actor}: {run} has no such journal; it has {', '.join(log.journals())}")
    attribution = Attribution()
    kinds = {k.casefold() for k in kind}
    seen: set[str] = set()
    shown = total = 0
    for entry in merged(log):
        total += 1
        try:
            event = decode(entry.raw)
        except EventMalformed:
            event = UnknownEvent("", entry.raw)  # of another version: shown all the same
        attribution.note(event)
        if actor is not None and entry.frame.journal != actor:
            continue
        if trial is not None and attribution.trial(event) != trial:
            continue
        if step is not None and attribution.step(event) != step:
            continue
        plain = cast("dict[str, Any]", msgpack.unpackb(entry.raw))
        seen.add(str(plain.get("kind", "")))
        if kinds and str(plain.get("kind", "")).casefold() not in kinds:
            continue
        print(_json(entry, plain) if as_json else _line(entry, plain))
        shown += 1
    if not shown:
        asked = {"--trial": trial, "--step": step, "--actor": actor, "--kind": " or ".join(kind) or None}
        raise CommandFailed(_nothing(run, total, asked, seen))


def check(run: RunDirectory) -> int:
    """Check a run: journals and blobs whole, inputs applied once and in order, every invariant between events.

    May run beside a live run. Exit status 0: no error (notes are not errors). 1: errors, each with its place.

    Example: `t1 log check runs/latest`
    """
    log = open_run(run)
    blobs = FileBlobs(run / "blobs")
    with Progress("journals", count=size) as progress:
        checked = check_journals(log, progress)
    problems = checked.problems
    with Progress("blobs") as progress:
        problems += check_blobs(blobs, progress)
    for problem in problems:
        print(f"error  {problem.message}")
    findings: list[Finding] = []
    events = 0
    if problems:
        print("the events themselves were not checked: first make journals and blobs whole", file=sys.stderr)
    else:
        invariants, references = Invariants(), References(blobs)
        with Progress("events") as progress:
            total = log.events()
            for entry in merged(log):
                progress(invariants.events, total)
                event = invariants.apply(entry)
                if event is not None:
                    references.apply(entry, event)
        findings = [*invariants.finish(), *references.finish()]
        events = invariants.events
    for finding in findings:
        print(f"{finding.severity:<6} {finding.text}")
    errors = len(problems) + sum(f.severity == "error" for f in findings)
    journals = len(log.journals())
    print(f"{'clean' if not errors else f'{errors} errors'}: {journals} journals, {events:,} events")
    print(f"digest {run_digest(checked.digests)}")
    return 1 if errors else 0


def _nothing(run: Path, total: int, asked: dict[str, object], kinds: set[str]) -> str:
    """Why nothing was shown. ``kinds`` are those of the events that only --kind left out."""
    given = [f"{name} {value}" for name, value in asked.items() if value is not None]
    if not given:
        return f"{run}: it has no events yet"
    text = f"{run}: none of its {total:,} events is of {', '.join(given)}"
    if kinds:
        return f"{text}; without --kind there are: {', '.join(sorted(kinds))}"
    return f"{text}; a trial is named as in s3.t17, of step 3" if asked["--trial"] is not None else text


# --- how an event is shown ------------------------------------------------------------------------------------------


def _at(entry: Entry) -> datetime:
    return datetime.fromtimestamp(entry.frame.head.wall_ns / 1e9, UTC)


def _line(entry: Entry, plain: dict[str, Any]) -> str:
    fields = " ".join(f"{name}={_short(value)}" for name, value in plain.items() if name not in ("kind", "v"))
    at = _at(entry)
    kind = plain.get("kind", "?")
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {entry.frame.journal:<10} {entry.sequence:>7} {kind} {fields}"


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return f"<{size(len(value))}>"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        if {"digest", "size_bytes"} <= items.keys():
            return f"<{items['digest'][:12]} {size(items['size_bytes'])}>"
        if {"dtype", "shape", "data"} <= items.keys():
            return f"<{items['dtype']}{items['shape']}>"
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in list(items.items())[: SHOWN_ITEMS * 2]) + "}"
    if isinstance(value, list):
        listed = cast("list[Any]", value)
        shown = ", ".join(_short(v) for v in listed[:SHOWN_ITEMS])
        return f"[{shown}]" if len(listed) <= SHOWN_ITEMS else f"[{shown}, ... {len(listed)}]"
    if isinstance(value, str):
        text = one_line(value)
        if len(text) > SHOWN_CHARS:
            text = f"{text[:SHOWN_CHARS]}... {len(value)} chars"
        return f"'{text}'" if not text or " " in text else text
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _json(entry: Entry, plain: dict[str, Any]) -> str:
    head = {
        "at": _at(entry).isoformat(),
        "journal": entry.frame.journal,
        "sequence": entry.sequence,
        "epoch": entry.frame.epoch,
    }
    return json.dumps({**head, **plain}, ensure_ascii=False, default=_encoded)


def _encoded(value: Any) -> str:
    assert isinstance(value, bytes), f"MessagePack holds nothing else that JSON lacks: {type(value)}"
    return base64.b64encode(value).decode()
