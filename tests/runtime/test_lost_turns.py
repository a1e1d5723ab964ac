"""A lost machine may take the routing of turns: what is still needed is sampled again, and nothing else is cut."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from t1actors.cli.main import main
from t1actors.events import (
    BatchSealed,
    Graded,
    Payload,
    SandboxSealed,
    Tensor,
    TrajectoryAssembled,
    TrialCancelled,
    TrialFailed,
    TurnSampled,
    encode,
)
from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_blobs, check_journals
from t1actors.log.errors import JournalDamaged
from t1actors.log.filelog import FileLog
from t1actors.log.interface import CommitHead
from t1actors.log.segments import segment_path
from t1actors.runtime.loss import cuts_of, settle_after_loss
from tests.golden_events import example
from tests.log.support import frames_of
from tests.runtime.test_loss import BOOT, lose_power

replace = msgspec.structs.replace


def routing(trial: str, turn: int) -> bytes:
    return f"{trial}/{turn}".encode() * 3000


class Made:
    """A log of turns and of what became of trials, a frame each."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.log = FileLog(run_dir / "log")
        self.blobs = FileBlobs(run_dir / "blobs")
        self._writers = {name: self.log.open_writer(name) for name in ("assembler", "pool", "sampler", "verifier")}
        self._vector: dict[str, int] = {}

    def write(self, journal: str, event) -> None:
        """Resting on all that was written so far."""
        writer = self._writers[journal]
        vector = {name: n for name, n in self._vector.items() if name != journal}
        self._vector[journal] = writer.append(CommitHead(vector=vector), [encode(event)])

    def turn(self, trial: str, turn: int) -> str:
        data = routing(trial, turn)
        payload = Payload(digest=self.blobs.put(data, volatile=True), size_bytes=len(data))
        tensor = Tensor(dtype="uint8", shape=(1, 1, len(data)), data=payload)
        self.write("sampler", replace(example(TurnSampled), trial=trial, turn=turn, routing=tensor))
        return payload.digest

    def assembled(self, trial: str, *pages: Payload) -> None:
        kept = Payload(digest=self.blobs.put(b"record of " + trial.encode()), size_bytes=1)
        event = replace(example(TrajectoryAssembled), trial=trial, step=0, record=kept, pages=pages)
        self.write("assembler", event)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def lose_power(self, *lost: str) -> None:
        """And with it these blobs."""
        self.close()
        lose_power(self.log)
        for digest in lost:
            self.blobs.path(digest).unlink()

    def settle(self) -> list[tuple[str, int]]:
        """What was cut: journal, and from where on."""
        settle_after_loss(self.run_dir, BOOT, "machine")
        assert check_journals(self.log).problems == []
        assert check_blobs(FileBlobs(self.run_dir / "blobs")) == []
        return sorted((cut.journal, cut.from_sequence) for cut in cuts_of(self.run_dir))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "run")


def test_a_turn_of_a_trial_in_play_whose_routing_is_lost_is_cut_off_with_what_rests_on_it(made: Made):
    kept = made.turn("s0.t0", 0)
    lost = made.turn("s0.t1", 0)
    made.write("pool", replace(example(SandboxSealed), trial="s0.t1"))
    made.lose_power(lost)
    assert made.settle() == [("pool", 0), ("sampler", 1)]
    assert [cut.reason for cut in cuts_of(made.run_dir) if cut.journal == "sampler"] == [
        f"segment 0, offset {cut_at(made)}: TurnSampled.routing: blob {lost[:16]}… of turn 0 of trial s0.t1 is damaged or "
        "missing"
    ]
    assert made.blobs.has(kept)
    assert len(frames_of(made.log, "sampler")) == 1


def cut_at(made: Made) -> int:
    return segment_path(made.log.directory("sampler"), 0).stat().st_size


def test_a_routing_that_is_there_in_part_is_lost(made: Made):
    lost = made.turn("s0.t1", 0)
    made.lose_power()
    os.truncate(made.blobs.path(lost), 100)
    assert made.settle() == [("sampler", 0)]


def test_nothing_is_cut_when_nothing_is_lost(made: Made):
    made.turn("s0.t0", 0)
    made.turn("s0.t1", 0)
    made.lose_power()
    before = {path: path.read_bytes() for path in made.run_dir.rglob("*.seg")}
    assert made.settle() == []
    assert {path: path.read_bytes() for path in made.run_dir.rglob("*.seg")} == before
    assert len(list(made.blobs.digests())) == 2


@pytest.mark.parametrize(
    ("journal", "ending"),
    [
        ("assembler", replace(example(TrialCancelled), trial="s0.t1")),
        ("pool", replace(example(TrialFailed), trial="s0.t1")),
        ("verifier", replace(example(Graded), trial="s0.t1", outcome="no_report", reward=None)),
        ("assembler", replace(example(BatchSealed), step=0)),
    ],
)
def test_the_routing_of_a_trial_that_is_over_is_missed_by_nobody(made: Made, journal: str, ending):
    lost = made.turn("s0.t1", 0)
    damaged = made.turn("s0.t1", 1)
    whole = made.turn("s0.t1", 2)
    made.write(journal, ending)
    made.lose_power(lost)
    os.truncate(made.blobs.path(damaged), 10)
    assert made.settle() == []
    assert not made.blobs.has(whole)  # of no use any more, so it is not even read


@pytest.mark.parametrize("outcome", ["graded", "infra"])
def test_a_graded_trial_is_still_to_be_assembled(made: Made, outcome):
    lost = made.turn("s0.t1", 0)
    made.write("verifier", replace(example(Graded), trial="s0.t1", outcome=outcome))
    made.lose_power(lost)
    assert made.settle() == ([("sampler", 0), ("verifier", 0)] if outcome == "graded" else [])


def test_an_assembled_trial_needs_its_pages_and_not_its_turns(made: Made):
    shared = made.turn("s0.t1", 0)
    lost = made.turn("s0.t1", 1)
    made.blobs.put(routing("s0.t1", 0))
    made.assembled("s0.t1", Payload(digest=shared, size_bytes=len(routing("s0.t1", 0))))
    made.lose_power(lost)
    assert made.settle() == []
    assert made.blobs.has(shared)


def test_a_trial_whose_assembling_was_cut_off_needs_its_turns_again(made: Made):
    early = made.turn("s0.t1", 0)
    late = made.turn("s0.t2", 0)
    made.assembled("s0.t1")
    made.lose_power(early, late)
    assert made.settle() == [("assembler", 0), ("sampler", 0), ("sampler", 1)]
    assert frames_of(made.log, "sampler") == []


def test_a_blob_that_was_half_put_and_never_named_is_taken_out_of_the_way(made: Made):
    half = made.blobs.put(b"half", volatile=True)
    made.lose_power()
    os.truncate(made.blobs.path(half), 0)
    assert made.settle() == []
    assert list(made.blobs.digests()) == []


def test_damage_is_still_refused_and_not_cut_off_with_a_lost_turn(made: Made):
    made.assembled("s0.t0")
    made.assembled("s0.t2")
    lost = made.turn("s0.t1", 0)
    made.lose_power(lost)
    path = segment_path(made.log.directory("assembler"), 0)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged):
        made.settle()
    assert cuts_of(made.run_dir) == []
    assert path.read_bytes() == data


def test_a_salvaged_run_is_cut_to_before_turns_that_it_would_need_and_whose_routing_is_damaged(
    made: Made, tmp_path: Path, capsys
):
    made.turn("s0.t0", 0)
    lost = made.turn("s0.t1", 0)
    made.write("pool", replace(example(SandboxSealed), trial="s0.t1"))
    made.close()
    data = bytearray(made.blobs.path(lost).read_bytes())
    data[5] ^= 1
    made.blobs.path(lost).write_bytes(data)
    saved = tmp_path / "saved"
    assert main(["log", "salvage", str(made.run_dir), str(saved)]) == 1
    said = capsys.readouterr().out
    assert "journal sampler: kept up to event 0; the rest" in said
    assert f"TurnSampled.routing: blob {lost[:16]}… of turn 0 of trial s0.t1 is damaged or missing" in said
    assert "journal pool: nothing of it could be kept" in said
    assert [len(frames_of(FileLog(saved / "log"), name)) for name in ("sampler", "pool")] == [1, 0]
    assert check_journals(FileLog(saved / "log")).problems == []
    assert len(frames_of(made.log, "sampler")) == 2


def test_a_start_that_died_in_the_middle_is_gone_on_with(made: Made, monkeypatch: pytest.MonkeyPatch):
    lost = made.turn("s0.t1", 0)
    made.write("pool", replace(example(SandboxSealed), trial="s0.t1"))
    made.lose_power(lost)

    def died(*arguments, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("t1actors.runtime.loss.set_aside", died)
        with pytest.raises(KeyboardInterrupt):
            made.settle()
    assert made.settle() == [("pool", 0), ("sampler", 0)]
