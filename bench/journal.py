"""One journal against the floor and against SQLite: durable commits, seven writers, waking, reading, folding.

    python -m bench.journal [--quick] [--json FILE]

The floor (*raw*) is what any log must do for a commit: one ``pwrite`` of the bytes and one ``fdatasync``. *SQLite* is what
one would use instead: a file for each writer, WAL, ``synchronous=FULL``, one transaction a commit. All three commit the
same events in turns.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from bench.local_run import temporary_directory
from bench.log import EVENT, HEAD
from bench.measure import Sample, Spread, interleaved, rate, ratios
from bench.tables import Table, conclude, parser
from t1actors.events import decode
from t1actors.log import file_writer
from t1actors.log.filelog import FileLog
from t1actors.log.frame import MAX_FRAME_BYTES
from t1actors.log.segments import Position

LARGE = b"\xc5\xff\xfd" + bytes(65_533)
"""A MessagePack value of 64 KiB."""
WRITERS = 7
ZEROS_BYTES = 32 << 20
"""More than one of the seven writers fills."""


@dataclass(frozen=True)
class Sizes:
    """``commits`` of each kind a round; ``seven_s`` seconds of seven writers; ``wakes`` measured; ``read`` events read."""

    commits: int = 300
    large_commits: int = 40
    rounds: int = 7
    seven_s: float = 2.0
    seven_rounds: int = 5
    wakes: int = 2000
    read: int = 200_000


QUICK = Sizes(commits=5, large_commits=2, rounds=1, seven_s=0.1, seven_rounds=1, wakes=10, read=1000)


class Store(Protocol):
    """Something that commits events durably."""

    def commit(self, events: Sequence[bytes]) -> None: ...
    def close(self) -> None: ...


class Journal:
    """This package's. What does not fit into one frame goes in as many as it takes."""

    def __init__(self, folder: Path) -> None:
        self._writer = FileLog(folder / "journal").open_writer("bench")

    def commit(self, events: Sequence[bytes]) -> None:
        a_frame = max(1, (MAX_FRAME_BYTES - 4096) // len(events[0]))
        for first in range(0, len(events), a_frame):
            self._writer.append(HEAD, events[first : first + a_frame])

    def close(self) -> None:
        self._writer.close()


class Raw:
    """The floor."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT)
        self._offset = 0

    def commit(self, events: Sequence[bytes]) -> None:
        data = b"".join(events)
        os.pwrite(self._descriptor, data, self._offset)
        os.fdatasync(self._descriptor)
        self._offset += len(data)

    def close(self) -> None:
        os.close(self._descriptor)


class RawOverZeros(Raw):
    """The least that a commit through the page cache costs this disk: the floor, over zeros that lie on the disk already."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.pwrite(self._descriptor, bytes(ZEROS_BYTES), 0)
        os.fsync(self._descriptor)


class Sqlite:
    """A table of events."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(folder / "events.sqlite", isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE events (sequence INTEGER PRIMARY KEY, event BLOB)")

    def commit(self, events: Sequence[bytes]) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO events (event) VALUES (?)", [(event,) for event in events])
        self._database.execute("COMMIT")

    def events(self) -> Iterator[bytes]:
        """All, in order."""
        for (event,) in self._database.execute("SELECT event FROM events ORDER BY sequence"):
            yield event

    def close(self) -> None:
        self._database.close()


STORES: dict[str, Callable[[Path], Store]] = {"journal": Journal, "raw": Raw, "SQLite": Sqlite}
SEVEN_STORES = {**STORES, "raw over zeros": RawOverZeros}


# --- commits ------------------------------------------------------------------------------------------------------------


def commits_table(sizes: Sizes) -> Table:
    kinds = [
        ("1 event", [EVENT], sizes.commits, 1.3),
        ("16 events", [EVENT] * 16, sizes.commits, 1.3),
        ("256 events", [EVENT] * 256, sizes.commits, 1.3),
        ("16 events of 64 KiB", [LARGE] * 16, sizes.large_commits, 2.0),
    ]
    rows: list[tuple[object, ...]] = []
    with temporary_directory() as folder:
        stores = {name: make(folder / name) for name, make in STORES.items()}
        for name, events, count, target in kinds:

            def commits(store: Store, events: Sequence[bytes] = events, count: int = count) -> None:
                for _ in range(count):
                    store.commit(events)

            found = interleaved({n: lambda s=store: commits(s) for n, store in stores.items()}, rounds=sizes.rounds)
            each = {n: Spread.of([sample.wall_s / count * 1e6 for sample in samples]) for n, samples in found.items()}
            over = ratios(found["journal"], found["raw"])
            verdict = "met" if over.median <= target else "**missed**"
            rows.append(
                (name, *each.values(), over, f"{target:g}: {verdict}", ratios(found["SQLite"], found["journal"]))
            )
        for store in stores.values():
            store.close()
    return Table(
        "Durable commits, one writer",
        ("commit", "journal us", "raw us", "SQLite us", "journal / raw", "at most", "SQLite / journal"),
        tuple(rows),  # type: ignore[arg-type]
        f"Events of {len(EVENT)} bytes unless said. A frame holds at most {MAX_FRAME_BYTES // 1024} KiB, so 16 events of 64 "
        "KiB are three frames and three flushes of the journal; a run keeps payloads from 16 KiB on in blobs.",
    )


# --- seven writers ------------------------------------------------------------------------------------------------------


def _write_for(name: str, folder: Path, seconds: float, counts: multiprocessing.Queue[int]) -> None:
    store = SEVEN_STORES[name](folder)
    store.commit([EVENT])
    end_s = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end_s:
        store.commit([EVENT])
        count += 1
    store.close()
    counts.put(count)


def _seven(name: str, seconds: float) -> int:
    """Commits of seven processes, each with a file of its own."""
    context = multiprocessing.get_context("fork")
    counts: multiprocessing.Queue[int] = context.Queue()
    with temporary_directory() as folder:
        writers = [
            context.Process(target=_write_for, args=(name, folder / str(n), seconds, counts)) for n in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        total = sum(counts.get() for _ in writers)
        for writer in writers:
            writer.join()
    return total


def seven_table(sizes: Sizes) -> Table:
    rates: dict[str, list[float]] = {name: [] for name in SEVEN_STORES}
    for number in range(sizes.seven_rounds):
        for name in SEVEN_STORES if number % 2 == 0 else reversed(SEVEN_STORES):
            rates[name].append(_seven(name, sizes.seven_s) / sizes.seven_s)

    def over(one: str, other: str) -> Spread:
        return Spread.of([a / b for a, b in zip(rates[one], rates[other], strict=True)])

    verdict = "met" if over("journal", "SQLite").median >= 1.5 else "**missed**"
    return Table(
        "Durable commits of one event, seven writers at once",
        ("store", "commits/s, all together", "journal's / this", "this / SQLite's"),
        tuple(
            (
                name,
                Spread.of(found),
                None if name == "journal" else over("journal", name),
                None if name == "SQLite" else over(name, "SQLite"),
            )
            for name, found in rates.items()
        ),
        f"Seven processes, each with a file of its own. Target: 1.5 times SQLite: {verdict}. What *raw over zeros* is of "
        "SQLite no journal that is written through the page cache can be (docs/decisions/017).",
    )


# --- waking -------------------------------------------------------------------------------------------------------------


def _stamp_and_write(folder: Path, wakes: int, stamps: mmap.mmap) -> None:
    """Commits one event every few milliseconds; notes the moment at which each was durable and not yet published."""
    publish = file_writer.write_end
    writer = FileLog(folder).open_writer("bench")

    def noted(descriptor: int, position: Position) -> None:
        struct.pack_into("<q", stamps, 8 * writer.next_sequence, time.monotonic_ns())
        publish(descriptor, position)

    file_writer.write_end = noted
    for _ in range(wakes):
        time.sleep(0.001)
        writer.append(HEAD, [EVENT])
    writer.close()


def waking_table(sizes: Sizes) -> Table:
    stamps = mmap.mmap(-1, 8 * sizes.wakes)
    seen_us: list[float] = []

    async def follow(folder: Path) -> None:
        log = FileLog(folder)
        async with log.watch() as watch:
            watch.add("bench")
            reader = log.open_reader("bench")
            writer = multiprocessing.get_context("fork").Process(
                target=_stamp_and_write, args=(folder, sizes.wakes, stamps)
            )
            writer.start()
            while len(seen_us) < sizes.wakes:
                for frame in reader.read():
                    durable_ns = struct.unpack_from("<q", stamps, 8 * frame.base_sequence)[0]
                    seen_us.append((time.monotonic_ns() - durable_ns) / 1e3)
                await watch.wait(0.25)
            reader.close()
            writer.join()

    with temporary_directory() as folder:
        trio.run(follow, folder)
    ordered = sorted(seen_us)
    median, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    verdict = "met" if median <= 250 else "**missed**"
    return Table(
        "From durable to read in another process",
        ("wakes", "median us", "99 % us", "largest us"),
        ((len(ordered), median, high, ordered[-1]),),
        "The writer flushes every frame. The clock starts when the flush has returned, before the durable end is written, "
        "and stops when a trio task, woken by inotify, has read and decoded the frame. Target: 250 us at the median: "
        f"{verdict}.",
    )


# --- reading ------------------------------------------------------------------------------------------------------------


def reading_table(sizes: Sizes) -> Table:
    with temporary_directory() as folder:
        journal, database = FileLog(folder / "log", "process"), Sqlite(folder / "sqlite")
        writer = journal.open_writer("bench")
        for _ in range(sizes.read // 64):
            writer.append(HEAD, [EVENT] * 64)
            database.commit([EVENT] * 64)
        writer.close()
        total = sizes.read // 64 * 64

        def read(*, parse: bool) -> None:
            reader = journal.open_reader("bench")
            while frames := reader.read():
                for frame in frames:
                    for raw in frame.events if parse else ():
                        decode(raw)
            reader.close()

        def select(*, parse: bool) -> None:
            for raw in database.events():
                if parse:
                    decode(raw)

        def opens() -> None:
            journal.open_writer("bench").close()

        found: dict[str, list[Sample]] = interleaved(
            {
                "journal": lambda: read(parse=False),
                "SQLite": lambda: select(parse=False),
                "journal, decoded": lambda: read(parse=True),
                "SQLite, decoded": lambda: select(parse=True),
                "opening the journal for writing, which checks all of it": opens,
            },
            rounds=sizes.rounds,
        )
        database.close()
    return Table(
        "Reading in order",
        ("what", "events/s"),
        tuple((name, rate(total, samples)) for name, samples in found.items()),
        "Frames of 64 events, checksummed; SQLite checks none. Decoding into typed events is a fold's cost but for the fold.",
    )


def run(sizes: Sizes) -> list[Table]:
    return [commits_table(sizes), seven_table(sizes), waking_table(sizes), reading_table(sizes)]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    conclude("journal", arguments, lambda: run(QUICK if arguments.quick else Sizes()))


if __name__ == "__main__":
    main()
