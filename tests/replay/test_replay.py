"""Replay of a synthetic run: bit-exact from the log alone, and the place of whatever differs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from t1actors.events import ActorUpdated, CriticUpdated, RunStarted, StepOpened, ValuesEstimated, decode, encode
from t1actors.log.blobs import FileBlobs, MemoryBlobs
from t1actors.log.filelog import FileLog
from t1actors.log.memory import MemoryLog
from t1actors.log.merged import merged
from t1actors.payloads import pack, unpack
from t1actors.replay.inputs import fold_inputs, read_inputs
from t1actors.replay.run import Replayer, replay
from t1actors.train.batch import Batch
from t1actors.train.crew import Crew
from t1actors.train.digests import decode_detail, encode_detail
from tests.replay.synthetic_run import PURPOSES, TRAINED, TRIALS, write_run

TARGET = 5
"""A step in the middle: a train step with staleness 1 whose ground is recomputed."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A run with every blob."""
    run_dir = tmp_path_factory.mktemp("kept")
    write_run(FileLog(run_dir / "log", "process"), FileBlobs(run_dir / "blobs", "process"), sweep=False)
    return run_dir


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """The same run with the blobs that a real one keeps."""
    run_dir = tmp_path_factory.mktemp("swept")
    write_run(FileLog(run_dir / "log", "process"), FileBlobs(run_dir / "blobs", "process"), sweep=True)
    return run_dir


def test_steps_that_two_ranks_recorded_replay_bit_exact_on_one_process(tmp_path: Path):
    """And are the steps of one process: the logs of both are the same, event by event."""
    alone = tmp_path / "alone"
    write_run(FileLog(alone / "log", "process"), FileBlobs(alone / "blobs", "process"))
    together = tmp_path / "together"
    with Crew(2, what="the crew of two") as crew:
        write_run(FileLog(together / "log", "process"), FileBlobs(together / "blobs", "process"), crew=crew)
        assert len(crew.pids) == 1  # there was a second process
    reports = list(Replayer.open(together).all())
    assert len(reports) == len(PURPOSES)
    assert all(report.bit_exact for report in reports), [report.text() for report in reports]
    assert events_of(together) == events_of(alone)


def events_of(run_dir: Path):
    return [decode(entry.raw) for entry in merged(FileLog(run_dir / "log"))]


def replayer(run_dir: Path, change=lambda event: event, blobs=None) -> Replayer:
    """Over the run's events as ``change`` alters them."""
    return Replayer(fold_inputs(change(e) for e in events_of(run_dir)), blobs or FileBlobs(run_dir / "blobs"))


def altered(kind, step, **changes):
    def change(event):
        hit = isinstance(event, kind) and event.step == step
        return msgspec.structs.replace(event, **changes) if hit else event

    return change


def edit_token(place: int) -> object:
    """Changes one observation id of a trial, and digests anew."""

    def edit(batch: Batch) -> Batch:
        items = list(batch.items)
        made, reward = items[place]
        ids = made.chunks[0].arrays().ids_N.copy()
        ids[0] = (ids[0] + 1) % 24
        chunk = msgspec.structs.replace(made.chunks[0], ids=ids.tobytes())
        items[place] = (msgspec.structs.replace(made, chunks=(chunk,)), reward)
        return Batch.of(items, batch.geometry)

    return edit


# --- bit-exact --------------------------------------------------------------------------------------------------------


def test_every_step_replays_bit_exact_from_the_blobs_that_a_run_keeps(swept):
    for number in range(len(PURPOSES)):
        report = replay(swept, number)
        assert report.bit_exact, report.text()
        assert report.exit_status == 0
        assert all(level.equal for level in report.levels)


def test_all_steps_in_turn_share_what_they_computed(swept):
    run = Replayer.open(swept)
    reports = list(run.all())
    assert [r.step for r in reports] == list(range(len(PURPOSES)))
    assert all(r.bit_exact for r in reports)
    assert all(r.recomputed == (r.step,) for r in reports)  # each began where the one before ended


def test_the_levels_of_a_train_step_are_all_there_in_order(kept):
    assert [level.name for level in replay(kept, TARGET).levels] == [
        "batch",
        "critic values",
        "critic weights before",
        "critic loss",
        "critic gradients",
        "critic weights",
        "critic optimizer",
        "actor weights before",
        "actor old log-probs",
        "actor loss",
        "actor gradients",
        "actor weights",
        "actor optimizer",
    ]
    assert [level.part for level in replay(kept, 3).levels] == ["batch", *["critic"] * 6]
    assert [level.name for level in replay(kept, 0).levels] == ["batch"]


def test_with_every_state_there_a_step_rests_on_itself_alone(kept):
    assert replay(kept, TARGET).recomputed == (TARGET,)


def test_without_a_state_it_is_computed_forward_from_the_last_snapshot(swept):
    report = replay(swept, 6)
    assert report.recomputed == (5, 6)
    assert report.bit_exact


def test_no_step_reaches_back_much_further_than_one_snapshot_interval(swept):
    every = read_inputs(FileLog(swept / "log")).config.train.snapshot_every
    for number in TRAINED:
        # the actor's ground lies at most one interval back, and the values of its first step another
        assert len(replay(swept, number).recomputed) <= 2 * every - 1


def delete_results(run_dir: Path, *, states_from: int) -> None:
    """Recorded values and log-probs of every step, details, and every state and version from a step on."""
    blobs = FileBlobs(run_dir / "blobs")
    for event in events_of(run_dir):
        if isinstance(event, ValuesEstimated):
            gone = [event.values.data]
        elif isinstance(event, CriticUpdated):
            gone = [event.detail, *([event.state] if event.step >= states_from else [])]
        elif isinstance(event, ActorUpdated):
            later = [event.state, event.weights] if event.step >= states_from else []
            gone = [event.detail, event.tokens.data, *later]
        else:
            continue
        for payload in gone:
            blobs.delete(payload.digest)


@pytest.mark.parametrize("states_from", [0, TARGET])
def test_it_works_without_the_recorded_values_log_probs_and_later_snapshots(kept, tmp_path, states_from):
    run_dir = tmp_path / "run"
    shutil.copytree(kept, run_dir)
    delete_results(run_dir, states_from=states_from)
    blobs = FileBlobs(run_dir / "blobs")
    # inline copies of the small streams are wiped from the events too: nothing may look at them
    empty = pack(blobs, b"")

    def wipe(event):
        if isinstance(event, ValuesEstimated):
            return msgspec.structs.replace(event, values=msgspec.structs.replace(event.values, data=empty))
        if isinstance(event, ActorUpdated):
            wiped = msgspec.structs.replace(event.tokens, data=empty)
            return msgspec.structs.replace(event, tokens=wiped, detail=None)
        return msgspec.structs.replace(event, detail=None) if isinstance(event, CriticUpdated) else event

    run = replayer(run_dir, wipe)
    for number in (TARGET, 7):
        report = run.step(number)
        assert report.bit_exact, report.text()


def test_a_fresh_process_replays_what_this_one_recorded(swept):
    code = (
        "import sys; from pathlib import Path; from t1actors.replay.run import replay;"
        "report = replay(Path(sys.argv[1]), int(sys.argv[2])); print(report.text()); sys.exit(report.exit_status)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(swept), "6"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "bit-exact"


def test_a_run_in_memory_replays_as_one_in_files():
    log, blobs = MemoryLog(), MemoryBlobs()
    write_run(log, blobs)
    assert Replayer(read_inputs(log), blobs).step(TARGET).bit_exact


def test_replay_writes_nothing_into_the_run(swept):
    def listing():
        return sorted((str(p), p.stat().st_mtime_ns) for p in swept.rglob("*"))

    before = listing()
    replay(swept, TARGET)
    assert listing() == before


# --- what if ----------------------------------------------------------------------------------------------------------


def test_one_changed_token_changes_the_batch_and_the_weights_and_names_the_trial(kept):
    report = replay(kept, TARGET, edit=edit_token(2))
    assert report.exit_status == 1
    assert report.edited
    assert report.first.level == "batch"
    assert report.first.trial == f"s{TARGET}.t2"
    differ = {level.name for level in report.levels if not level.equal}
    assert {"batch", "critic weights", "actor old log-probs", "actor weights"} <= differ
    assert {"critic weights before", "actor weights before"}.isdisjoint(differ)


def test_another_configuration_gives_other_weights_from_the_same_batch(kept):
    run = Replayer.open(kept)
    train = run.inputs.config.train
    report = run.step(TARGET, train=replace(train, actor=replace(train.actor, clip=0.01)))
    differ = {level.name for level in report.levels if not level.equal}
    assert "actor weights" in differ
    assert {"batch", "critic values", "critic weights", "actor old log-probs"}.isdisjoint(differ)
    assert run.step(TARGET).bit_exact


def test_a_what_if_leaves_nothing_behind_for_the_steps_after_it(swept):
    run = Replayer.open(swept)
    run.step(TARGET, edit=edit_token(0))
    assert run.step(TARGET + 1).bit_exact


# --- the first difference ---------------------------------------------------------------------------------------------


def flip(digest: str) -> str:
    return ("0" if digest[0] != "0" else "1") + digest[1:]


@pytest.mark.parametrize(
    ("kind", "field", "level"),
    [
        (ValuesEstimated, "values_digest", "critic values"),
        (CriticUpdated, "loss_digest", "critic loss"),
        (CriticUpdated, "gradient_digest", "critic gradients"),
        (CriticUpdated, "weights_after", "critic weights"),
        (CriticUpdated, "optimizer_after", "critic optimizer"),
        (ActorUpdated, "old_logprobs_digest", "actor old log-probs"),
        (ActorUpdated, "loss_digest", "actor loss"),
        (ActorUpdated, "gradient_digest", "actor gradients"),
        (ActorUpdated, "weights_after", "actor weights"),
        (ActorUpdated, "optimizer_after", "actor optimizer"),
    ],
)
def test_a_recorded_digest_that_differs_is_named_as_the_first_level(kept, kind, field, level):
    recorded = next(e for e in events_of(kept) if isinstance(e, kind) and e.step == TARGET)
    report = replayer(kept, altered(kind, TARGET, **{field: flip(getattr(recorded, field))})).step(TARGET)
    assert report.exit_status == 1
    assert (report.first.step, report.first.level) == (TARGET, level)
    assert [x.name for x in report.levels if not x.equal] == [level]


def test_a_recorded_value_that_differs_is_named_by_trial_and_token(kept):
    blobs = FileBlobs(kept / "blobs")
    event = next(e for e in events_of(kept) if isinstance(e, ValuesEstimated) and e.step == TARGET)
    run = Replayer.open(kept)
    run.step(TARGET)
    stream = np.frombuffer(unpack(blobs, event.values.data), dtype=np.float32).copy()
    batch = run._chain.batch(TARGET)
    stream[batch.trials[3].first + 1] += 1e-6
    data = pack(MemoryBlobs(), stream.tobytes())
    change = altered(
        ValuesEstimated, TARGET, values=msgspec.structs.replace(event.values, data=data), values_digest="00" * 32
    )
    first = replayer(kept, change).step(TARGET).first
    assert (first.level, first.trial, first.token) == ("critic values", f"s{TARGET}.t3", 1)
    assert "1 tokens differ" in first.note


def with_detail(run_dir: Path, kind, edit, **changes):
    """The run with another recorded detail at the target."""
    event = next(e for e in events_of(run_dir) if isinstance(e, kind) and e.step == TARGET)
    detail = edit(decode_detail(unpack(FileBlobs(run_dir / "blobs"), event.detail)))
    payload = pack(MemoryBlobs(), encode_detail(detail))
    return replayer(run_dir, altered(kind, TARGET, detail=payload, **changes)).step(TARGET).first


def damaged(data: bytes, place: int) -> bytes:
    at = 8 * place
    return data[:at] + bytes(8) + data[at + 8 :]


def test_without_the_recorded_streams_the_short_digests_still_name_the_trial(kept):
    event = next(e for e in events_of(kept) if isinstance(e, ActorUpdated) and e.step == TARGET)
    gone = msgspec.structs.replace(event.tokens, data=pack(MemoryBlobs(), b""))
    first = with_detail(
        kept,
        ActorUpdated,
        lambda d: msgspec.structs.replace(d, trials=damaged(d.trials, 4)),
        tokens=gone,
        old_logprobs_digest="00" * 32,
    )
    assert (first.level, first.trial, first.token) == ("actor old log-probs", f"s{TARGET}.t4", None)


@pytest.mark.parametrize("digest", ["loss_digest", "gradient_digest"])
def test_the_first_gradient_that_differs_is_named_by_update_and_tensor(kept, digest):
    def edit(detail):
        second = detail.updates[1]
        second = msgspec.structs.replace(second, gradients=damaged(second.gradients, 3))
        third = msgspec.structs.replace(detail.updates[2], losses=damaged(detail.updates[2].losses, 0))
        return msgspec.structs.replace(detail, updates=(detail.updates[0], second, third, *detail.updates[3:]))

    first = with_detail(kept, CriticUpdated, edit, **{digest: "00" * 32})
    assert (first.level, first.update) == ("critic gradients", 2)
    assert first.tensor.startswith("model.layers.0.")


def test_the_first_loss_that_differs_is_named_by_update_and_trial(kept):
    def edit(detail):
        update = msgspec.structs.replace(detail.updates[1], losses=damaged(detail.updates[1].losses, 0))
        return msgspec.structs.replace(detail, updates=(detail.updates[0], update))

    first = with_detail(kept, ActorUpdated, edit, loss_digest="00" * 32)
    assert (first.level, first.update) == ("actor loss", 2)
    assert first.trial.startswith(f"s{TARGET}.t")


@pytest.mark.parametrize(("part", "note"), [("first", "first moment"), ("second", "second moment"), ("weights", "")])
def test_the_first_tensor_of_weights_and_optimizer_that_differs_is_named(kept, part, note):
    digest = "weights_after" if part == "weights" else "optimizer_after"
    first = with_detail(
        kept,
        ActorUpdated,
        lambda d: msgspec.structs.replace(d, **{part: damaged(getattr(d, part), 0)}),
        **{digest: "00" * 32},
    )
    assert first.tensor == "model.embed_tokens.weight"
    assert first.note == note


def test_a_step_whose_ground_differs_is_reported_at_the_earlier_step(swept):
    report = replayer(swept, altered(ActorUpdated, 4, gradient_digest="00" * 32)).step(TARGET)
    assert report.exit_status == 1
    assert report.first.step == 4
    assert report.first.level == "actor gradients"
    assert "step 4" in report.text()


def test_another_environment_is_shown_and_is_no_verdict(kept):
    def change(event):
        if type(event).__name__ == "ActorInitialised":
            return msgspec.structs.replace(event, environment={**event.environment, "torch": "0.0.1"})
        return event

    report = replayer(kept, change).step(TARGET)
    assert report.bit_exact
    assert [(c.part, c.key, c.recorded) for c in report.environment] == [("actor", "torch", "0.0.1")]
    assert "torch was '0.0.1'" in report.text()
    assert re.search(r"actor environment: all \d\d operations give the recorded bits here", report.text())
    assert "critic environment" not in report.text()


def test_a_replay_elsewhere_names_the_operations_that_give_other_bits(kept):
    def change(event):
        if type(event).__name__ == "CriticInitialised":
            there = {"operation float32 attend": "0" * 16, "operation torch exp": "0" * 16, "operations": "0" * 16}
            return msgspec.structs.replace(event, environment={**event.environment, **there})
        return event

    report = replayer(kept, change).step(TARGET)
    assert [(o.part, o.differing) for o in report.operations] == [
        ("critic", ("float32 attend", "torch exp")),
        ("actor", ()),
    ]
    assert report.environment == ()
    assert re.search(r"critic environment: 2 of \d\d .* other bits here: float32 attend, torch exp\n", report.text())


def test_a_replay_uses_the_kernels_of_the_run(kept):
    def change(event):
        there = {"kernels": "padded"}
        environment = getattr(event, "environment", None)
        return msgspec.structs.replace(event, environment={**environment, **there}) if environment else event

    report = replayer(kept, change).step(TARGET)
    assert "kernels" not in {change.key for change in report.environment}
    recorded_with = next(e.environment["kernels"] for e in events_of(kept) if getattr(e, "environment", None))
    if recorded_with == "padded":
        assert report.bit_exact
    else:
        assert report.first is not None
        assert "float32 attend" in report.operations[0].differing


def test_what_the_run_was_begun_with_decides_over_what_its_actor_said(kept):
    def change(event):
        return msgspec.structs.replace(event, kernels="padded") if isinstance(event, RunStarted) else event

    assert replayer(kept, change).inputs.kernels == "padded"
    said = next(e.environment["kernels"] for e in events_of(kept) if getattr(e, "environment", None))
    assert replayer(kept).inputs.kernels == said.partition("/")[0]


# --- what cannot be replayed ------------------------------------------------------------------------------------------


def copy_of(run_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_dir, tmp_path / "run"))


def record_payload(run_dir: Path, trial: str):
    return next(getattr(e, "record", None) for e in events_of(run_dir) if getattr(e, "trial", "") == trial)


def test_a_changed_byte_in_a_trajectory_is_found_and_named_by_trial_and_path(kept, tmp_path):
    run_dir = copy_of(kept, tmp_path)
    path = FileBlobs(run_dir / "blobs").path(record_payload(run_dir, f"s{TARGET}.t1").digest)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    report = replay(run_dir, TARGET)
    assert report.exit_status == 2
    assert f"step {TARGET}, trial s{TARGET}.t1" in report.impossible
    assert str(path) in report.impossible
    assert "damaged" in report.impossible
    assert replay(run_dir, TARGET + 1).bit_exact


def test_a_missing_trajectory_is_named_also_when_it_belongs_to_a_step_that_must_be_recomputed(swept, tmp_path):
    run_dir = copy_of(swept, tmp_path)
    FileBlobs(run_dir / "blobs").delete(record_payload(run_dir, "s4.t0").digest)
    report = replay(run_dir, TARGET)
    assert report.exit_status == 2
    assert "step 4, trial s4.t0" in report.impossible
    assert "missing" in report.impossible
    assert replay(run_dir, 7).bit_exact  # its own ground is a snapshot


def test_a_changed_byte_in_a_state_is_found_and_named(kept, tmp_path):
    run_dir = copy_of(kept, tmp_path)
    event = next(e for e in events_of(run_dir) if isinstance(e, CriticUpdated) and e.step == TARGET - 1)
    path = FileBlobs(run_dir / "blobs").path(event.state.digest)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    report = replay(run_dir, TARGET)
    assert report.exit_status == 2
    assert f"the critic's state after step {TARGET - 1}" in report.impossible


def test_a_damaged_journal_is_named(kept, tmp_path):
    run_dir = copy_of(kept, tmp_path)
    segment = next((run_dir / "log" / "critic").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    report = replay(run_dir, TARGET)
    assert report.exit_status == 2
    assert "journal critic" in report.impossible


def test_a_step_that_is_not_there_or_was_not_trained_says_so(kept, tmp_path):
    assert "no step 99: its log has steps 0 to 7" in replay(kept, 99).impossible
    assert "not the directory of a run" in replay(tmp_path / "nothing", 0).impossible
    without = [
        e for e in events_of(kept) if not (getattr(e, "step", 0) == 7 and not isinstance(e, (StepOpened, RunStarted)))
    ]
    last = Replayer(fold_inputs(without), FileBlobs(kept / "blobs"))
    assert "BatchSealed" in last.step(7).impossible
    assert last.step(7).exit_status == 2
    assert len(list(last.all())) == 7


def test_a_batch_that_was_sealed_and_never_trained_is_no_step_to_replay(kept):
    trained = (ValuesEstimated, CriticUpdated, ActorUpdated)
    cut = [e for e in events_of(kept) if not (isinstance(e, trained) and e.step == 7)]
    run = Replayer(fold_inputs(cut), FileBlobs(kept / "blobs"))
    assert "before ValuesEstimated" in run.step(7).impossible
    assert [r.step for r in run.all()] == list(range(7))


def test_a_step_whose_actor_never_finished_is_compared_as_far_as_it_was_recorded(kept):
    cut = [e for e in events_of(kept) if not (isinstance(e, ActorUpdated) and e.step == 7)]
    report = Replayer(fold_inputs(cut), FileBlobs(kept / "blobs")).step(7)
    assert report.bit_exact
    assert {level.part for level in report.levels} == {"batch", "critic"}


def test_a_log_without_a_run_is_refused():
    assert Replayer  # the class is what a notebook uses
    with pytest.raises(Exception, match="no RunStarted"):
        fold_inputs([])


def test_every_trained_step_of_the_synthetic_run_has_what_the_tests_rely_on(kept):
    inputs = read_inputs(FileLog(kept / "log"))
    assert tuple(n for n, s in sorted(inputs.steps.items()) if s.critic is not None) == TRAINED
    actors = {n: s.actor for n, s in inputs.steps.items() if s.actor is not None}
    assert [(n, a.staleness) for n, a in sorted(actors.items())] == [(1, 0), (2, 1), (4, 0), (5, 1), (6, 1), (7, 1)]
    assert actors[4].weights_before == actors[1].weights_before  # training forgot the warm-up's policy
    assert inputs.steps[3].critic.weights_before == inputs.steps[2].critic.weights_after  # and kept its critic
    assert all(len(s.sealed.items) == TRIALS for s in inputs.steps.values())
    assert all(encode(a) for a in actors.values())
