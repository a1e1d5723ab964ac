"""A snapshot and what is behind it are the same as everything from the start; one that does not fit is not used."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from t1actors.config import Config, RunConfig, ScheduleConfig
from t1actors.events import GenerationQuiesced, encode
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.interface import Snapshot
from t1actors.log.memory import MemoryLog
from t1actors.log.snapshots import read_snapshots, snapshot_files, write_snapshot
from t1actors.runtime.actor import NOTHING, ActorContext, Decision, Wait
from t1actors.runtime.clock import run_virtual
from t1actors.runtime.errors import ActorFailed, HostError, leaves
from t1actors.runtime.local import run_local
from t1actors.runtime.snapshots import beginning, form_of
from tests.runtime import toys
from tests.runtime.states import frame_count, rebuilt, recovered_by, taken_after
from tests.runtime.worlds import Crash, MortalLog, World, settle

TOTAL = 60


def config(snapshot_events):
    return Config(run=RunConfig(snapshot_events=snapshot_events), schedule=ScheduleConfig(train_steps=TOTAL))


class Deliberate(toys.Source):
    """Waits now and then, and changes its mind: open intents with times, and cancelled ones."""

    effect_type = toys.Emit

    def decide(self, state, event):
        decision = super().decide(state, event)
        waits = [Wait(key=f"wait/{state.next}", seconds=1000.0)] if decision.effects and state.next % 4 else []
        cancels = [f"wait/{state.next - self.count}"] if state.next % 2 else []
        return replace(decision, effects=[*decision.effects, *waits], cancels=cancels)


CHAIN = [("source", Deliberate), ("triple", toys.Triple), ("sink", toys.Sink)]


def run_chain(log, deaths=(), *, snapshot_events):
    async def main():
        for appends, lands in [*deaths, (None, False)]:
            mortal = MortalLog(log)
            mortal.dies_at, mortal.lands = appends, lands
            try:
                await run_local(
                    CHAIN, config=config(snapshot_events), log=mortal, blobs=None, run_dir=Path("run"), concludes="sink"
                )
            except (ActorFailed, Crash, BaseExceptionGroup):
                assert mortal.dead

    run_virtual(main)
    return log


def made(factory, name="actor"):
    return factory(ActorContext(name, Path("run"), config(0), None, 1, lambda: 0.0))  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=5), st.integers(1, 30))
def test_what_hosts_kept_through_any_deaths_leads_to_the_state_that_folding_gives(deaths, every):
    log = run_chain(MemoryLog(), deaths, snapshot_events=every)
    assert [e.step for e in journal(log, "source")] == list(range(TOTAL))
    for name, factory in CHAIN:
        whole = recovered_by(log, name, made(factory), epoch=50)
        kept = log.snapshots(name)
        assert kept
        for snapshot in kept:
            assert rebuilt(recovered_by(log, name, made(factory), epoch=50, snapshot=snapshot)) == rebuilt(whole)


def test_from_any_frame_on_recovery_comes_to_the_same():
    log = run_chain(MemoryLog(), [(20, True), (15, False)], snapshot_events=0)
    for name, factory in CHAIN:
        whole = recovered_by(log, name, made(factory), epoch=9)
        for frames in range(1, frame_count(log, name) + 1):
            snapshot = taken_after(log, name, made(factory), frames)
            found = recovered_by(log, name, made(factory), epoch=9, snapshot=snapshot)
            assert rebuilt(found) == rebuilt(whole), f"{name} after {frames} frames"


class Loud(toys.Triple):
    """Emits more for an event than many would fit into a frame."""

    reads = frozenset({"driver"})

    def decide(self, state, event):
        return Decision(events=[toys.number(1, "x" * 60_000)]) if isinstance(event, GenerationQuiesced) else NOTHING


class Counted(Loud):
    def initial(self):
        return toys.Received()

    def fold(self, state, event):
        if isinstance(event, GenerationQuiesced):
            state.numbers.append(event.step)
        return state


def test_a_snapshot_may_be_of_a_frame_that_ends_in_the_middle_of_anothers():
    world = World()
    world.introduce("driver")

    async def main():
        async with world.hosting(Counted):
            world.say("driver", *(toys.number(n, "driver") for n in range(30)))
            await settle()

    run_virtual(main)
    whole = recovered_by(world.log, "actor", made(Counted), epoch=2)
    positions = set()
    for frames in range(1, frame_count(world.log, "actor") + 1):
        snapshot = taken_after(world.log, "actor", made(Counted), frames)
        positions.add(snapshot.positions.get("driver", 0))
        found = recovered_by(world.log, "actor", made(Counted), epoch=2, snapshot=snapshot)
        assert rebuilt(found) == rebuilt(whole)
    assert positions - {0, 30}


def journal(log, name):
    from t1actors.events import decode

    reader = log.open_reader(name)
    found = []
    while frames := reader.read():
        found += [decode(raw) for frame in frames for raw in frame.events]
    return [event for event in found if isinstance(event, GenerationQuiesced)]


def test_no_snapshot_is_of_a_frame_that_is_not_durable():
    log = MemoryLog()

    class Watching(MortalLog):
        def open_writer(self, name):
            writer = super().open_writer(name)
            keep = writer.keep

            def kept(snapshot):
                reader = log.open_reader(name)
                digests = []
                while reader.read(max_frames=1):
                    digests.append(reader.last_digest())
                assert snapshot.last_frame in digests
                counted.append(snapshot)
                keep(snapshot)

            writer.keep = kept
            return writer

    counted = []

    async def main():
        await run_local(CHAIN, config=config(5), log=Watching(log), blobs=None, run_dir=Path("run"), concludes="sink")

    run_virtual(main)
    assert len(counted) > 3 * len(CHAIN)


def test_snapshots_can_be_turned_off():
    log = run_chain(MemoryLog(), snapshot_events=0)
    assert [log.snapshots(name) for name, _ in CHAIN] == [[], [], []]


def test_a_clean_stop_leaves_a_snapshot_behind_the_last_frame():
    log = run_chain(MemoryLog(), snapshot_events=20_000)
    for name, factory in CHAIN:
        snapshot = beginning(log, name, code="", form=form_of(made(factory).initial()))
        assert snapshot is not None
        reader = log.open_reader(name, from_sequence=snapshot.base_sequence)
        frames = reader.read()
        assert frames[-1].next_sequence == snapshot.next_sequence


def chosen(log, name="source", *, code="now", state=None):
    return beginning(log, name, code=code, form=form_of(toys.Emitted() if state is None else state))


@pytest.fixture
def kept(tmp_path):
    """A chain's log on disk and two snapshots of its source, by the code ``now``."""
    log = FileLog(tmp_path, "process")
    run_chain(log, snapshot_events=0)
    for frames in (5, 9):
        write_snapshot(
            log.directory("source"), taken_after(log, "source", made(Deliberate), frames, code="now"), flush=False
        )
    return log


def test_the_newest_is_used(kept):
    assert chosen(kept) == kept.snapshots("source")[0]


def test_a_damaged_one_is_passed_over_and_then_the_start_is_read(kept):
    newest, older = snapshot_files(kept.directory("source"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert chosen(kept) == read_snapshots(kept.directory("source"))[0]
    data = bytearray(older.read_bytes())
    data[50] ^= 1
    older.write_bytes(data)
    assert chosen(kept) is None


def test_another_codes_snapshot_is_not_used_while_everything_can_be_folded(kept):
    assert chosen(kept, code="later") is None


def test_a_state_of_another_form_is_not_used(kept):
    @dataclass
    class Emitted:
        next: int = 0
        begun: bool = False
        more: list[int] = field(default_factory=list)

    assert chosen(kept, state=Emitted()) is None


def test_a_snapshot_of_a_frame_that_was_cut_off_is_not_used(kept):
    newest, older = kept.snapshots("source")
    strange = structs.replace(newest, last_frame=bytes(32), next_sequence=newest.next_sequence + 1)
    write_snapshot(kept.directory("source"), strange, flush=False)
    assert chosen(kept) == newest
    # When the journal was cut back, what is written next is of an earlier time than what was there.
    write_snapshot(kept.directory("source"), older, flush=False)
    assert kept.snapshots("source") == [older]


def test_a_snapshot_that_has_read_more_than_there_is_is_not_used(kept):
    newest, _ = kept.snapshots("source")
    write_snapshot(kept.directory("source"), structs.replace(newest, positions={"supervisor": 10_000}), flush=False)
    assert chosen(kept) == kept.snapshots("source")[1]


def test_frames_without_events_do_not_make_a_journal_look_shorter(tmp_path):
    log = FileLog(tmp_path, "process")
    others, own = log.open_writer("driver"), log.open_writer("source")
    for events in (1, 0, 0, 1, 0):
        others.append(CommitHead(), [encode(toys.number(1, "driver"))] * events)
    own.append(CommitHead(), [])
    for position, there in ((1, True), (2, True), (3, False)):
        snapshot = Snapshot(
            base_sequence=0, next_sequence=0, last_frame=own.last_frame, code="now", shape=form_of(toys.Emitted()),
            positions={"driver": position}, vector={}, content=b"",
        )  # fmt: skip
        own.keep(snapshot)
        assert chosen(log) == (snapshot if there else None)
    others.close()
    own.close()


def test_the_latest_two_are_kept(kept):
    for frames in (12, 15):
        write_snapshot(kept.directory("source"), taken_after(kept, "source", made(Deliberate), frames), flush=True)
    names = [path.name for path in snapshot_files(kept.directory("source"))]
    sequences = [snapshot.next_sequence for snapshot in kept.snapshots("source")]
    assert len(names) == 2
    assert sequences == sorted(sequences, reverse=True)
    assert not list(kept.directory("source").glob(".*"))


class Loose(toys.Toy):
    def initial(self):
        return []


class Changing(toys.Toy):
    reads = frozenset({"driver"})

    def fold(self, state, event):
        return event

    def decide(self, state, event):
        return Decision(events=[toys.number(1, "x")]) if type(event).__name__ == "ActorStarted" else NOTHING


@pytest.mark.parametrize(
    ("factory", "message"),
    [(Loose, "does not say what it holds: make it a dataclass"), (Changing, "became a .* and began as a NoneType")],
)
def test_a_state_that_no_snapshot_could_be_read_into_is_refused(factory, message):
    world = World()
    world.introduce("driver")

    async def main():
        async with world.hosting(factory):
            await settle()

    with pytest.raises(BaseException) as caught:  # noqa: PT011
        run_virtual(main)
    [error] = leaves(caught.value)
    assert isinstance(error, HostError)
    with pytest.raises(HostError, match=message):
        raise error


def test_an_old_snapshot_goes_only_when_the_newer_one_and_its_frame_are_on_the_disk(tmp_path, monkeypatch):
    """Also where nothing else is flushed: of a trimmed journal there is no other beginning."""
    steps = []
    monkeypatch.setattr("t1actors.log.snapshots.sync_file_system", lambda path: steps.append(len(snapshot_files(path))))
    for n in range(3):
        write_snapshot(tmp_path, snapshot_at(n), flush=False)
    assert steps == [3]
    assert len(snapshot_files(tmp_path)) == 2


def snapshot_at(n):
    return Snapshot(
        base_sequence=n, next_sequence=n + 1, last_frame=b"", code="", shape="", positions={}, vector={}, content=b""
    )
