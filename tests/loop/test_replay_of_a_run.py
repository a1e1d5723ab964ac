"""Any step of a real run re-executes to the same bytes; what is missing or changed is found and named."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from t1actors.events import ActorUpdated, CriticUpdated, StepOpened, ValuesEstimated
from t1actors.replay.run import Replayer, replay
from t1actors.tito.record import Chunk
from t1actors.train.batch import Batch
from tests.loop.runs import TinyRun


@pytest.fixture
def copy(tiny_run: TinyRun, tmp_path: Path) -> Path:
    shutil.copytree(tiny_run.run_dir, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def blob(run_dir: Path, digest: str) -> Path:
    return run_dir / "blobs" / digest[:2] / digest


def test_every_step_replays_bit_exact(tiny_run: TinyRun) -> None:
    reports = list(Replayer.open(tiny_run.run_dir).all())
    assert [r.step for r in reports] == [s.step for s in tiny_run.of(StepOpened)]
    assert all(r.bit_exact for r in reports), [r.text() for r in reports]


def test_every_step_replays_without_recorded_values_log_probs_and_later_snapshots(
    tiny_run: TinyRun, copy: Path
) -> None:
    recorded = [v.values.data for v in tiny_run.of(ValuesEstimated)]
    recorded += [u.tokens.data for u in tiny_run.of(ActorUpdated)]
    recorded += [u.state for u in tiny_run.of(ActorUpdated)] + [u.weights for u in tiny_run.of(ActorUpdated)]
    recorded += [u.state for u in tiny_run.of(CriticUpdated)]
    for payload in recorded:
        blob(copy, payload.digest).unlink(missing_ok=True)
    last = tiny_run.of(ActorUpdated)[-1].step
    report = replay(copy, last)
    assert report.bit_exact, report.text()


def test_a_changed_byte_in_the_first_snapshot_is_found_and_named(tiny_run: TinyRun, copy: Path) -> None:
    first = next(e for e in tiny_run.events if type(e).__name__ == "ActorInitialised")
    path = blob(copy, first.state.digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    report = replay(copy, tiny_run.of(ActorUpdated)[0].step)
    assert not report.bit_exact
    assert first.state.digest[:12] in report.text()


def test_one_changed_token_changes_the_batch_and_the_weights(tiny_run: TinyRun) -> None:
    def edit(batch: Batch) -> Batch:
        (record, reward), *others = batch.items
        chunk = record.chunks[0]
        ids_N = np.frombuffer(chunk.ids, dtype="<i4").copy()
        ids_N[3] = ids_N[3] % 400 + 1
        chunks: tuple[Chunk, ...] = (structs.replace(chunk, ids=ids_N.tobytes()), *record.chunks[1:])
        return Batch.of([(structs.replace(record, chunks=chunks), reward), *others], batch.geometry)

    report = replay(tiny_run.run_dir, tiny_run.of(ActorUpdated)[1].step, edit=edit)
    differing = {level.name for level in report.levels if not level.equal}
    assert {"batch", "critic weights", "actor weights"} <= differing


def test_a_replay_in_another_process_says_bit_exact_and_exits_with_zero(tiny_run: TinyRun) -> None:
    step = tiny_run.of(ActorUpdated)[2].step
    done = subprocess.run(
        [sys.executable, "-m", "t1actors", "replay", str(tiny_run.run_dir), "--step", str(step)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit-exact" in done.stdout
