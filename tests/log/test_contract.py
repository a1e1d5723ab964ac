"""What every log promises: one suite over memory and files."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t1actors.log.filelog import FileLog
from t1actors.log.frame import MAX_FRAME_BYTES, CommitHead, encode_frame, frame_bytes, frame_digest
from t1actors.log.interface import FrameRefused, JournalFailed, JournalFenced, Log
from t1actors.log.memory import MemoryLog
from tests.log.support import event, frames_of, read_all, resting_on

MakeLog = Callable[[Path], Log]
LOGS: dict[str, MakeLog] = {
    "memory": lambda root: MemoryLog(),
    "files": lambda root: FileLog(root / "log"),
    "files without flush": lambda root: FileLog(root / "log", "process"),
    "files in small segments": lambda root: FileLog(root / "log", "process", segment_bytes=150),
}


@pytest.fixture(params=list(LOGS), ids=list(LOGS))
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    return LOGS[request.param](tmp_path)


def test_what_append_returned_can_be_read(log: Log):
    writer = log.open_writer("a")
    reader = log.open_reader("a")
    assert writer.append(resting_on(b=3), [event(1), event(2)]) == 0
    assert writer.append(resting_on(b=4), [event(3)]) == 2
    first, second = reader.read()
    assert (first.journal, first.base_sequence, first.events) == ("a", 0, (event(1), event(2)))
    assert (second.base_sequence, second.events, second.head.vector) == (2, (event(3),), {"b": 4})
    assert first.epoch == second.epoch == writer.epoch
    assert reader.next_sequence == writer.next_sequence == 3
    assert reader.read() == []


def test_each_frame_names_the_one_before_it_also_across_openings(log: Log):
    for value in range(3):
        writer = log.open_writer("a")
        writer.append(CommitHead(), [event(value)])
        writer.append(CommitHead(previous=b"whatever the caller says"), [])
        writer.close()
    frames = frames_of(log, "a")
    assert frames[0].head.previous == b""
    for before, frame in itertools.pairwise(frames):
        encoded = (
            encode_frame(
                before.head, before.events, base_sequence=before.base_sequence, epoch=before.epoch, seals=seals
            )
            for seals in (False, True)
        )
        assert frame.head.previous in [frame_digest(data) for data in encoded]


def test_a_frame_without_events_is_delivered_and_takes_no_sequence(log: Log):
    writer = log.open_writer("a")
    assert [writer.append(resting_on(b=n), []) for n in range(3)] == [0, 0, 0]
    assert writer.append(CommitHead(), [event(1)]) == 0
    assert [frame.head.vector.get("b") for frame in frames_of(log, "a")] == [0, 1, 2, None]


def test_a_second_writer_is_fenced_until_the_first_closes(log: Log):
    writer = log.open_writer("a")
    writer.append(CommitHead(), [event(1)])
    with pytest.raises(JournalFenced, match="journal a"):
        log.open_writer("a")
    log.open_writer("b").close()
    writer.close()
    writer.close()
    with pytest.raises(JournalFailed):
        writer.append(CommitHead(), [event(2)])
    successor = log.open_writer("a")
    assert successor.epoch > writer.epoch
    assert successor.append(CommitHead(), [event(3)]) == 1
    assert [frame.epoch for frame in frames_of(log, "a")] == [writer.epoch, successor.epoch]


def test_the_epoch_rises_at_every_opening_even_when_nothing_is_written(log: Log):
    epochs: list[int] = []
    for _ in range(4):
        writer = log.open_writer("a")
        epochs.append(writer.epoch)
        writer.close()
    assert epochs == [1, 2, 3, 4]


def test_a_journal_that_does_not_exist_reads_as_empty_until_it_does(log: Log):
    reader = log.open_reader("late")
    assert reader.read() == []
    assert log.journals() == []
    writer = log.open_writer("late")
    assert reader.read() == []
    writer.append(CommitHead(), [event(1)])
    assert [frame.events for frame in reader.read()] == [(event(1),)]
    assert log.journals() == ["late"]


def test_reading_from_any_sequence_gives_the_frames_that_reach_it(log: Log):
    writer = log.open_writer("a")
    for count in (0, 2, 0, 3, 1, 0, 0, 4, 1):
        writer.append(CommitHead(), [event(n) for n in range(count)])
    everything = frames_of(log, "a")
    for sequence in range(writer.next_sequence + 3):
        wanted = [frame for frame in everything if frame.base_sequence >= sequence or frame.next_sequence > sequence]
        reader = log.open_reader("a", from_sequence=sequence)
        assert read_all(reader) == wanted
    ahead = log.open_reader("a", from_sequence=writer.next_sequence + 2)
    assert ahead.read() == []
    for _ in range(4):
        writer.append(CommitHead(), [event(0)])
    assert [frame.base_sequence for frame in ahead.read()] == [13, 14]


def test_at_most_max_frames_are_read_and_the_rest_later(log: Log):
    writer = log.open_writer("a")
    for n in range(7):
        writer.append(CommitHead(), [event(n)])
    reader = log.open_reader("a")
    assert [len(reader.read(max_frames=3)) for _ in range(4)] == [3, 3, 1, 0]


def test_the_largest_frame_is_taken_and_one_byte_more_is_refused(log: Log):
    writer = log.open_writer("a")
    room = MAX_FRAME_BYTES - frame_bytes(CommitHead(), 0)
    largest = b"\xc6" + (room - 5).to_bytes(4, "big") + b"x" * (room - 5)
    with pytest.raises(FrameRefused, match="524,289 bytes"):
        writer.append(CommitHead(), [largest, b"\x00"])
    assert writer.append(CommitHead(), [largest]) == 0
    assert writer.append(CommitHead(), [event(1)]) == 1
    assert [frame.events for frame in frames_of(log, "a")] == [(largest,), (event(1),)]


@pytest.mark.parametrize("bad", [b"", b"\x93\x01", event(1) + event(2), b"\xc1"])
def test_an_event_that_is_not_one_messagepack_value_is_refused(log: Log, bad: bytes):
    writer = log.open_writer("a")
    with pytest.raises(FrameRefused):
        writer.append(CommitHead(), [event(0), bad, event(1)])
    assert writer.append(CommitHead(), [event(0)]) == 0


def test_readers_do_not_disturb_each_other(log: Log):
    writer = log.open_writer("a")
    one, other = log.open_reader("a"), log.open_reader("a")
    writer.append(CommitHead(), [event(1)])
    assert len(one.read()) == 1
    one.close()
    writer.append(CommitHead(), [event(2)])
    assert [frame.base_sequence for frame in other.read()] == [0, 1]


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden", "a b", "x" * 101])
def test_a_name_that_cannot_name_a_directory_is_refused(log: Log, name: str):
    with pytest.raises(ValueError, match="journal name"):
        log.open_writer(name)
    with pytest.raises(ValueError, match="journal name"):
        log.open_reader(name)


def test_the_journals_are_listed_sorted(log: Log):
    for name in ("c", "a", "b.2", "b-1"):
        log.open_writer(name).close()
    assert log.journals() == ["a", "b-1", "b.2", "c"]


@pytest.mark.parametrize("make", LOGS.values(), ids=LOGS.keys())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.lists(st.integers() | st.binary(max_size=80), max_size=5),
            st.just("reopen"),
            st.integers(min_value=1, max_value=4),
        ),
        max_size=30,
    )
)
def test_any_history_of_appends_reopenings_and_reads_is_read_as_written(
    make: MakeLog, tmp_path_factory: pytest.TempPathFactory, steps: list[list[int | bytes] | str | int]
):
    log = make(tmp_path_factory.mktemp("log"))
    writer, reader = log.open_writer("a"), log.open_reader("a")
    written: list[tuple[int, tuple[bytes, ...]]] = []
    seen: list[tuple[int, tuple[bytes, ...]]] = []
    for step in steps:
        if step == "reopen":
            writer.close()
            writer = log.open_writer("a")
        elif isinstance(step, int):
            seen += [(frame.epoch, frame.events) for frame in reader.read(max_frames=step)]
        elif isinstance(step, list):
            events = tuple(event(value) for value in step if isinstance(value, bytes) or abs(value) < 2**63)
            written.append((writer.epoch, events))
            writer.append(resting_on(b=len(written)), events)
    seen += [(frame.epoch, frame.events) for frame in read_all(reader)]
    assert seen == written
    writer.close()
    reader.close()


BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])
FOREVER_S = 600.0


@BACKENDS
def test_a_watch_wakes_for_what_grew_before_the_wait(log: Log, backend: str):
    writer = log.open_writer("a")

    async def main() -> None:
        async with log.watch() as watch:
            watch.add("a")
            writer.append(CommitHead(), [event(1)])
            with anyio.fail_after(30):
                await watch.wait(FOREVER_S)

    anyio.run(main, backend=backend)


@BACKENDS
def test_a_watch_wakes_for_an_append_in_another_thread(log: Log, backend: str):
    writer = log.open_writer("a")
    reader = log.open_reader("a")

    async def main() -> None:
        async with log.watch() as watch:
            watch.add("a")
            thread = threading.Timer(0.05, writer.append, [CommitHead(), [event(1)]])
            thread.start()
            with anyio.fail_after(30):
                while not (frames := reader.read()):
                    await watch.wait(FOREVER_S)
            thread.join()
            assert frames[0].events == (event(1),)

    anyio.run(main, backend=backend)


@BACKENDS
def test_a_watch_wakes_for_a_journal_born_after_it_was_added(log: Log, backend: str):
    log.open_writer("other").close()

    async def main() -> None:
        async with log.watch() as watch:
            watch.add("a")
            writer = log.open_writer("a")
            with anyio.fail_after(30):
                while not log.journals().count("a"):
                    await watch.wait(FOREVER_S)
                await watch.wait(0.001)
                writer.append(CommitHead(), [event(1)])
                await watch.wait(FOREVER_S)

    anyio.run(main, backend=backend)


@BACKENDS
def test_a_watch_sleeps_through_journals_it_was_not_told_of_and_what_it_has_seen(log: Log, backend: str):
    seen, other = log.open_writer("seen"), log.open_writer("other")

    async def main() -> None:
        async with log.watch() as watch:
            watch.add("seen")
            seen.append(CommitHead(), [event(1)])
            await watch.wait(FOREVER_S)
            other.append(CommitHead(), [event(1)])
            with anyio.move_on_after(0.05) as scope:
                await watch.wait(FOREVER_S)
            assert scope.cancelled_caught
            seen.append(CommitHead(), [event(1)])
            with anyio.fail_after(30):
                await watch.wait(FOREVER_S)

    anyio.run(main, backend=backend)


@BACKENDS
def test_the_slow_poll_ends_a_wait_without_news(log: Log, backend: str):
    async def main() -> None:
        async with log.watch() as watch:
            watch.add("never")
            with anyio.fail_after(30):
                await watch.wait(0.01)
                await watch.wait(0.0)

    anyio.run(main, backend=backend)
