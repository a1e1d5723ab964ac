"""`t1 grade`: recorded trials graded again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
from cyclopts import Parameter

from t1actors.cli.errors import WrongUsage
from t1actors.cli.progress import Progress
from t1actors.replay.regrade import Regraded, RegradeImpossible, Regrader, directory_of

SAME, DIFFERS, IMPOSSIBLE = 0, 1, 2


def grade(
    run: Annotated[Path, Parameter(help="A run's directory, such as runs/latest, or an exported archive.")],
    *,
    trial: Annotated[str | None, Parameter(help="The trial to grade again, such as s3.t7.")] = None,
    every: Annotated[
        bool, Parameter(name="--all", help="Every graded trial, with a summary.", negative=(), show_default=False)
    ] = False,
    tests: Annotated[Path | None, Parameter(help="Other tests: a folder with a test.sh, or a whole task.")] = None,
    json: Annotated[bool, Parameter(help="One JSON object a trial.", negative=(), show_default=False)] = False,
) -> int:
    """Grade a recorded trial again, from the log and its blobs, and compare with the recorded verdict.

    Prints the verdict for each assertion and what differs. With --all, how many verdicts agree: a verifier that is not
    the same each time shows here. Exit status 0: the same. 1: something differs. 2: it cannot be graded again, and the
    message says why.

    Example: `t1 grade runs/latest --trial s0.t0`
    """
    if (trial is None) == (not every):
        raise WrongUsage("say which trial: --trial ID, or --all")
    try:
        with directory_of(run) as place:
            with Progress("events") as progress:
                regrader = Regrader.open(place, tests=tests, progress=progress)
            return anyio.run(_grade, regrader, trial, json)
    except RegradeImpossible as error:
        print(f"t1: {error}", file=sys.stderr)
        return IMPOSSIBLE


async def _grade(regrader: Regrader, trial: str | None, json: bool) -> int:
    async with regrader.running():
        if trial is None:
            return await _all(regrader, json)
        again = await regrader.grade(trial)
        print(_json(again) if json else _text(again))
        return SAME if again.same else DIFFERS


async def _all(regrader: Regrader, json: bool) -> int:
    trials = regrader.trials()
    same, impossible = 0, 0
    with Progress("graded") as progress:
        for done, trial in enumerate(trials):
            progress(done, len(trials))
            try:
                again = await regrader.grade(trial)
            except RegradeImpossible as error:
                impossible += 1
                progress.clear()
                print(f"t1: {error}", file=sys.stderr, flush=True)
                continue
            same += again.same
            progress.clear()
            if json:
                print(_json(again), flush=True)
            elif not again.same:
                print(f"{trial:<10} {again.now.task}: {_changes(again)}", flush=True)
    if not json:
        ungraded = f", {impossible} cannot be graded again" if impossible else ""
        print(f"{same} of {len(trials) - impossible} verdicts agree{ungraded}")
    if impossible or not trials:
        return IMPOSSIBLE
    return SAME if same == len(trials) else DIFFERS


def _changes(again: Regraded) -> str:
    return "; ".join(f"{d.what}: {d.recorded or 'absent'} -> {d.now or 'absent'}" for d in again.differences)


def _text(again: Regraded) -> str:
    now, recorded = again.now, again.recorded
    lines = [f"trial    {now.trial}  task {now.task}"]
    lines += [f"{'passed' if result.passed else 'FAILED'}   {result.id}" for result in now.assertions]
    score = "no reward" if now.reward is None else f"reward {now.reward:g}"
    report = f", from {now.channel}" if now.channel else ""
    lines.append(f"verdict  {now.outcome}, {now.passed} of {now.expected}, {score} ({now.mode}{report})")
    if now.detail:
        lines.append(f"detail   {now.detail}")
    lines += [f"asked    {line}" for line in now.stand_ins]
    lines += [f"warning  {line}" for line in now.warnings]
    lines += [f"note     {line}" for line in again.notes]
    if recorded is None:
        lines.append("recorded no verdict: nothing to compare with")
    elif again.same:
        lines.append("recorded the same verdict")
    else:
        lines += [
            f"differs  {d.what}: recorded {d.recorded or 'absent'}, now {d.now or 'absent'}" for d in again.differences
        ]
    return "\n".join(lines)


def _json(again: Regraded) -> str:
    document: Mapping[str, object] = {
        "trial": again.now.trial,
        "same": again.same,
        "differences": [{"what": d.what, "recorded": d.recorded, "now": d.now} for d in again.differences],
        "notes": again.notes,
        "recorded": again.recorded,
        "now": again.now,
    }
    return msgspec.json.encode(document).decode()
