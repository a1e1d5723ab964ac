"""Episodes longer than a stream may be: chunks that begin with a summary, trained, replayed and checked like any others."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from t1actors.events import EpisodeEnded, TrajectoryAssembled, TurnExecuted, TurnSampled
from t1actors.log.blobs import FileBlobs
from t1actors.replay.run import Replayer
from t1actors.tito.stored import load
from tests.loop.runs import make_run

pytestmark = pytest.mark.usefixtures("host_makes_sandboxes")
SETS = (
    "rollout.compaction=summary",
    "rollout.max_ids=420",
    "rollout.summary_tokens=60",
    "rollout.turn_slack=0",
    "tasks.levels=[3]",
    "rollout.oversample=0.0",
    "schedule.evaluate=false",
    "schedule.train_steps=1",
)


def test_a_run_with_compaction_trains_every_call_once_and_replays(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", *SETS)
    assert run.result.reason == "finished", run.result
    turns: dict[str, list[TurnSampled]] = defaultdict(list)
    for event in run.of(TurnSampled):
        turns[event.trial].append(event)
    executed = {(event.trial, event.turn) for event in run.of(TurnExecuted)}
    summaries = [event for event in run.of(TurnSampled) if event.compaction == "summary"]
    assert summaries
    assert not [event for event in summaries if (event.trial, event.turn) in executed]
    begun = [event for event in run.of(TurnSampled) if event.compaction == "start"]
    assert begun
    for start in begun:
        before = turns[start.trial][start.turn - 1]
        assert before.compaction == "summary"
        assert start.routing.shape[0] == len(start.context_ids) + len(start.sampled_ids) - 1

    blobs = FileBlobs(run.run_dir / "blobs")
    split = [event for event in run.of(TrajectoryAssembled) if event.chunks > 1]
    assert split
    for event in split:
        starts = [turn.turn for turn in turns[event.trial] if turn.compaction == "start"]
        assert [b.turn for b in event.boundaries if b.case == "SPLIT"] == starts
        assert event.chunks == 1 + len(starts)
        record = load(blobs, event.record)
        assert all(len(chunk.arrays().ids_N) <= 420 for chunk in record.chunks)
        spans = [chunk.arrays().ids_N[a:b].tolist() for chunk in record.chunks for a, b in chunk.turns]
        assert spans == [list(turn.sampled_ids) for turn in turns[event.trial]]
    failed = [event for event in run.of(EpisodeEnded) if event.reason == "compaction_failed"]
    assert all(turns[event.trial][-1].compaction in ("summary", "") for event in failed)

    reports = list(Replayer.open(run.run_dir).all())
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]
    check = [sys.executable, "-m", "t1actors", "log", "check", str(run.run_dir)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
