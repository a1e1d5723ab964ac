"""A real run whose old steps were deleted: what is kept of it replays, it can be resumed, and it ends as it would have."""

import shutil
from pathlib import Path

import anyio
import pytest

from t1actors import config as cfg
from t1actors.events import ActorUpdated, CriticUpdated, LogTrimmed, RunFinished, StepOpened, decode
from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_blobs, check_journals, run_digest
from t1actors.log.errors import Truncated
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.log.snapshots import snapshot_files
from t1actors.log.sweep import sweep
from t1actors.observe.invariants import Invariants
from t1actors.observe.references import References
from t1actors.payloads import Blobs
from t1actors.replay.export import export
from t1actors.replay.run import Replayer
from t1actors.runtime.actor import ActorContext
from t1actors.runtime.appending import in_thread
from t1actors.runtime.errors import RecoveryError
from t1actors.runtime.local import run_local
from t1actors.runtime.snapshots import beginning, form_of
from t1actors.runtime.trim_note import trim_note
from t1actors.runtime.trimming import OF_TURNS, Trimmer
from tests.loop.runs import ACTORS, TINY, TinyRun, make_run
from tests.loop.storm import run_once
from tests.runtime.states import frame_count, rebuilt, recovered_by, taken_after

# Without trials to spare: which are in a batch is no matter of who came first.
SETS = ("run.segment_mb=0.03", "run.snapshot_events=200", "schedule.train_steps=8", "rollout.oversample=0")
KEPT = 4


@pytest.fixture(scope="module")
def whole(host_makes_sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return make_run(Path(tmp_path_factory.mktemp("run")) / "whole", *SETS)


@pytest.fixture
def copied(whole: TinyRun, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.run_dir, tmp_path / "run", symlinks=True))


def trim(run_dir: Path, count: int = KEPT):
    trimmer = Trimmer(run_dir)
    plan = trimmer.plan(count)
    trimmer.carry_out(plan)
    trimmer.close()
    return plan


@pytest.fixture
def trimmed(copied: Path) -> Path:
    plan = trim(copied)
    assert plan.segment_bytes > 0
    assert plan.blob_bytes > 0
    assert plan.beginnings.keys() == OF_TURNS
    return copied


def built(name: str, factory, run: TinyRun, run_dir: Path):
    blobs: Blobs = FileBlobs(run_dir / "blobs")
    return factory(ActorContext(name, run_dir, run.config, blobs, 1, lambda: 0.0))


@pytest.mark.parametrize(("name", "factory"), ACTORS)
def test_an_actors_state_from_any_frame_on_is_what_folding_gives(whole: TinyRun, name: str, factory) -> None:
    log = FileLog(whole.run_dir / "log")
    state = rebuilt(recovered_by(log, name, built(name, factory, whole, whole.run_dir), epoch=3))
    for snapshot in log.snapshots(name):
        actor = built(name, factory, whole, whole.run_dir)
        assert rebuilt(recovered_by(log, name, actor, epoch=3, snapshot=snapshot)) == state
    count = frame_count(log, name)
    actor_of = lambda: built(name, factory, whole, whole.run_dir)  # noqa: E731
    for frames in sorted({1, 2, count, *range(3, count, max(1, count // 12))}):
        snapshot = taken_after(log, name, actor_of(), frames)
        assert rebuilt(recovered_by(log, name, actor_of(), epoch=3, snapshot=snapshot)) == state, frames


@pytest.mark.parametrize(("name", "factory"), ACTORS)
def test_an_actor_of_a_trimmed_run_comes_to_the_same_state(whole: TinyRun, trimmed: Path, name: str, factory) -> None:
    folded = recovered_by(FileLog(whole.run_dir / "log"), name, built(name, factory, whole, whole.run_dir), epoch=3)
    log = FileLog(trimmed / "log")
    actor = built(name, factory, whole, trimmed)
    # Both snapshots that are kept will do: one may be damaged.
    for snapshot in log.snapshots(name):
        found = recovered_by(log, name, built(name, factory, whole, trimmed), epoch=3, snapshot=snapshot)
        assert rebuilt(found) == rebuilt(folded)
    # Another version of the code may use them, too, because nothing else is left.
    assert beginning(log, name, code="later", form=form_of(actor.initial())) is not None


def test_without_a_snapshot_a_trimmed_runs_actor_is_refused_by_name(whole: TinyRun, trimmed: Path) -> None:
    log = FileLog(trimmed / "log")
    form = form_of(built("pool", dict(ACTORS)["pool"], whole, trimmed).initial())
    with pytest.raises(RecoveryError, match="a state of another form"):
        beginning(log, "pool", code="", form="another")
    for path in (trimmed / "log").glob("*/snapshot-*"):
        path.unlink()
    with pytest.raises(RecoveryError, match=r"journal pool is kept from event .* none can be used: there is none"):
        beginning(log, "pool", code="", form=form)
    with pytest.raises(RecoveryError, match=r"actor assembler can only go on from a snapshot|journal pool"):
        recovered_by(log, "assembler", built("assembler", dict(ACTORS)["assembler"], whole, trimmed), epoch=3)


@pytest.mark.parametrize("name", ["critic", "actor"])
def test_the_trainers_of_a_trimmed_run_need_no_snapshot(whole: TinyRun, trimmed: Path, name: str) -> None:
    """So their states may get another form: nothing that they read is ever trimmed."""
    log, factory = FileLog(trimmed / "log"), dict(ACTORS)[name]
    assert beginning(log, name, code="", form="another") is None
    [snapshot, *_] = log.snapshots(name)
    folded = recovered_by(log, name, built(name, factory, whole, trimmed), epoch=3)
    gone_on = recovered_by(log, name, built(name, factory, whole, trimmed), epoch=3, snapshot=snapshot)
    assert rebuilt(folded) == rebuilt(gone_on)


def test_the_kept_steps_replay_and_the_others_say_why_not(trimmed: Path) -> None:
    first = trim_note(trimmed).first_step
    replayer = Replayer.open(trimmed)
    reports = list(replayer.all())
    assert [report.step for report in reports] == list(range(first, 13))
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]
    for number in range(first):  # small trajectories lie in the log and stay: then it may yet replay
        report = Replayer.open(trimmed).step(number)
        assert report.bit_exact or f"steps {first} to 12 replay" in report.text()


def test_it_is_whole_and_has_the_digest_that_it_had(whole: TinyRun, trimmed: Path) -> None:
    log = FileLog(trimmed / "log")
    checked = check_journals(log)
    assert checked.problems == []
    assert run_digest(checked.digests) == run_digest(check_journals(FileLog(whole.run_dir / "log")).digests)
    blobs = FileBlobs(trimmed / "blobs")
    assert check_blobs(blobs) == []
    note = trim_note(trimmed)
    invariants = Invariants(first_step=note.kept_step, trimmed=OF_TURNS)
    references = References(blobs, first_step=note.kept_step)
    for entry in merged(log):
        event = invariants.apply(entry)
        assert event is not None
        references.apply(entry, event)
    assert [f.text for f in [*invariants.finish(), *references.finish()] if f.severity == "error"] == []
    with pytest.raises(Truncated, match="t1 log trim"):
        log.open_reader("sampler").read()
    assert sweep(log, blobs, delete=False).blobs == 0
    assert trim(trimmed).empty


def test_what_an_actor_needs_stays_however_little_is_asked_for(whole: TinyRun, copied: Path) -> None:
    oldest = {n: FileLog(copied / "log").snapshots(n)[-1] for n, _ in ACTORS}
    trim(copied, 1)
    log = FileLog(copied / "log")
    for reader, snapshot in oldest.items():
        for name in OF_TURNS:
            assert log.kept_from(name) <= snapshot.positions.get(name, log.kept_from(name))
        assert log.kept_from(reader) <= snapshot.base_sequence
    # The last steps were evaluations: the states that the trainers would go on from are older than what is kept.
    blobs = FileBlobs(copied / "blobs")
    updates = whole.of(ActorUpdated)[-2:]
    for payload in [p for e in updates for p in (e.state, e.weights)] + [e.state for e in whole.of(CriticUpdated)[-2:]]:
        assert blobs.has(payload.digest)
    assert trim_note(copied).kept_step > updates[-1].step


def test_an_actor_without_a_snapshot_holds_everything_back(copied: Path) -> None:
    for path in snapshot_files(copied / "log" / "verifier"):
        path.unlink()
    plan = trim(copied)
    assert plan.segment_bytes == 0
    assert plan.blob_bytes > 0
    assert "actor verifier has no snapshot yet" in plan.held["sampler"]


def test_a_step_of_it_is_exported_and_replays_elsewhere(trimmed: Path, tmp_path: Path) -> None:
    first = trim_note(trimmed).first_step
    written = export(trimmed, tmp_path / "step.tar", step=first)
    assert written.replayed is not None
    assert written.replayed.bit_exact
    shutil.unpack_archive(tmp_path / "step.tar", tmp_path / "elsewhere", filter="data")
    there = tmp_path / "elsewhere" / "run"
    assert trim_note(there) == trim_note(trimmed)
    assert Replayer.open(there).step(first).bit_exact


def test_an_interrupted_run_that_was_trimmed_is_resumed_and_ends_with_the_same_weights(
    whole: TinyRun, tmp_path: Path
) -> None:
    run_dir = tmp_path / "interrupted"
    run_dir.mkdir()
    config = cfg.resolve(preset="smoke", sets=[*TINY, *SETS]).config
    log = FileLog(run_dir / "log", "process", segment_bytes=config.run.segment_bytes)

    async def until(step: int | None) -> None:
        async def watch(scope: anyio.CancelScope) -> None:
            while step is not None:
                reader = log.open_reader("actor")
                found = [decode(raw) for frame in reader.read() for raw in frame.events]
                reader.close()
                if any(isinstance(event, ActorUpdated) and event.step == step for event in found):
                    scope.cancel()
                    return
                await anyio.sleep(0.02)

        with anyio.fail_after(200):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, tasks.cancel_scope)
                await run_local(
                    ACTORS,
                    config=config,
                    log=log,
                    blobs=FileBlobs(run_dir / "blobs"),
                    run_dir=run_dir,
                    appending=in_thread(),
                )
                tasks.cancel_scope.cancel()

    anyio.run(until, 6, backend="trio")
    assert trim(run_dir, 1).segment_bytes > 0
    anyio.run(until, 9, backend="trio")
    assert trim(run_dir, 1).blob_bytes > 0
    anyio.run(until, None, backend="trio")
    [finished] = [e for entry in merged(log) if isinstance(e := decode(entry.raw), RunFinished)]
    assert finished.version == whole.of(RunFinished)[0].version
    assert check_journals(log).problems == []
    assert all(report.bit_exact for report in Replayer.open(run_dir).all())


def test_a_run_that_keeps_its_last_steps_deletes_as_it_goes_on_and_ends_with_the_same_weights(
    whole: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t1actors.runtime.keeping.RECENT_S", 0.2)  # the run itself takes no minute
    run_dir = tmp_path / "run"
    result = run_once(run_dir, *TINY, *SETS, "run.keep_steps=3", preset="smoke")
    assert result.reason == "finished", result.detail
    log = FileLog(run_dir / "log")
    events = [decode(entry.raw) for entry in merged(log)]
    told = [event for event in events if isinstance(event, LogTrimmed)]
    assert [event.trouble for event in told] == [""] * len(told)
    assert sum(event.blob_bytes for event in told) > 0
    assert sum(event.segment_bytes for event in told) > 0
    assert log.kept_from("sampler") > 0
    note = trim_note(run_dir)
    assert (note.first_step, note.kept_step) == (told[-1].first_step, told[-1].kept_step)
    [finished] = [event for event in events if isinstance(event, RunFinished)]
    assert finished.version == whole.of(RunFinished)[0].version
    assert check_journals(log).problems == []
    assert len([event for event in events if isinstance(event, StepOpened)]) == 13
    assert all(report.bit_exact for report in Replayer.open(run_dir).all())
