"""The log: its share of a run's wall time, and what it does alone.

    python -m bench.log [--quick] [--json FILE]

The share is measured end to end: the same run in one process, sampled from the same seeds, over journals on disk (flushed,
`machine`) and over journals in memory, in turns. What differs is the disk, the waking and the worker threads that wait for
flushes; the format, the checksums and the blobs are the same on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.local_run import local_run, temporary_directory
from bench.measure import Sample, Spread, cpu, interleaved, rate, wall
from bench.metered import MeteredLog
from bench.tables import Table, conclude, parser
from t1actors.config import Config, resolve
from t1actors.events import TurnExecuted as Event
from t1actors.events import decode, encode
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.interface import JournalWriter, Log
from t1actors.log.memory import MemoryLog
from t1actors.runtime.appending import Appending, in_thread, inline

SHORT_RUN = ("schedule.evaluate=false", "schedule.recalibrate_steps=1", "schedule.train_steps=3")


@dataclass(frozen=True)
class Sizes:
    """``appends`` of one event; frames of ``gathered`` events fill ``read`` events."""

    sets: tuple[str, ...] = SHORT_RUN
    pairs: int = 6
    appends: int = 300
    read: int = 100_000
    gathered: int = 64
    rounds: int = 5


QUICK = Sizes(
    sets=(*SHORT_RUN, "rollout.batch_size=3", "schedule.train_steps=1", "tasks.train_count=12"),
    pairs=1,
    appends=10,
    read=1_000,
    rounds=1,
)
HEAD = CommitHead(vector={"publisher": 1200, "pool": 40_000}, code="bench", wall_ns=1, mono_ns=1, boot_id="bench")
EVENT = encode(Event(trial="s12.t84", turn=3, observation="total 12\n" * 20, exit_code=0, seconds=0.01))


# --- share of a run -----------------------------------------------------------------------------------------------------


def share_tables(sizes: Sizes) -> list[Table]:
    config = resolve(preset="smoke", sets=sizes.sets).config
    disk_logs: list[MeteredLog] = []
    memory_logs: list[MeteredLog] = []
    with temporary_directory() as folder:
        numbers = count()

        def on_disk() -> None:
            run_dir = folder / str(next(numbers))
            _one_run(run_dir, config, FileLog(run_dir / "log", "machine"), disk_logs, appending=in_thread())

        def in_memory() -> None:
            run_dir = folder / str(next(numbers))
            _one_run(run_dir, config, MemoryLog(), memory_logs, appending=inline)

        # One round uncounted: the first run also imports and compiles.
        found = interleaved({"disk": on_disk, "memory": in_memory}, rounds=sizes.pairs, warmups=1)
    disk, memory = found["disk"], found["memory"]
    return [_share(disk, memory, disk_logs[1:], memory_logs[1:]), _inside(disk, memory, disk_logs[1:], memory_logs[1:])]


def _one_run(run_dir: Path, config: Config, log: Log, kept: list[MeteredLog], *, appending: Appending) -> None:
    metered = MeteredLog(log)
    local_run(run_dir, config, metered, appending=appending)
    kept.append(metered)


def _share(
    disk: list[Sample], memory: list[Sample], disk_logs: list[MeteredLog], memory_logs: list[MeteredLog]
) -> Table:
    pairs = list(zip(disk, memory, strict=True))
    of_wall = Spread.of([100 * (a.wall_s - b.wall_s) / a.wall_s for a, b in pairs])
    of_cpu = Spread.of([100 * (a.cpu_s - b.cpu_s) / a.cpu_s for a, b in pairs])
    of_medians = 100 * (wall(disk).median - wall(memory).median) / wall(disk).median
    return Table(
        "Share of the log in a run's wall time (target: under 2 %)",
        ("run", "seconds", "CPU seconds"),
        (
            ("journals on disk, flushed", wall(disk), cpu(disk)),
            ("journals in memory", wall(memory), cpu(memory)),
            ("share, %, pair by pair", of_wall, of_cpu),
            ("share, %, of the medians", of_medians, 100 * (1 - cpu(memory).median / cpu(disk).median)),
        ),
        f"{len(pairs)} pairs of runs in one process, in turns. The share is (disk - memory) / disk; below 0 it is the "
        "machine's noise. Batches as in the smoke preset: larger ones gather more events in a frame.",
    )


def _inside(
    disk: list[Sample], memory: list[Sample], disk_logs: list[MeteredLog], memory_logs: list[MeteredLog]
) -> Table:
    rows: list[tuple[str | Spread, ...]] = []
    for name, samples, logs in (("disk", disk, disk_logs), ("memory", memory, memory_logs)):
        for call in ("appends", "reads"):
            accounts = [log.appends if call == "appends" else log.reads for log in logs]
            rows.append(
                (
                    f"{name}: {call}",
                    Spread.of([a.calls for a in accounts]),
                    Spread.of([1e3 * a.wall_s / max(a.calls, 1) for a in accounts]),
                    Spread.of([1e3 * a.cpu_s / max(a.calls, 1) for a in accounts]),
                    Spread.of([100 * a.cpu_s / s.cpu_s for a, s in zip(accounts, samples, strict=True)]),
                )
            )
    return Table(
        "Inside the log's calls, in the same runs",
        ("calls", "count", "ms wall a call", "ms CPU a call", "% of the run's CPU"),
        tuple(rows),
        "CPU seconds of the calling thread, so this is steadier than the share above. An append on disk waits for its "
        "flush, while its actor goes on applying events.",
    )


# --- alone --------------------------------------------------------------------------------------------------------------


def alone_table(sizes: Sizes) -> Table:
    gathered = sizes.appends * sizes.gathered
    with temporary_directory() as folder:
        logs: dict[str, Log] = {
            "on disk, machine": FileLog(folder / "machine", "machine"),
            "on disk, process": FileLog(folder / "process", "process"),
            "in memory": MemoryLog(),
        }
        writers = {name: log.open_writer("bench") for name, log in logs.items()}
        single = interleaved(
            {name: lambda w=writer: fill(w, sizes.appends, 1) for name, writer in writers.items()}, rounds=sizes.rounds
        )
        many = interleaved(
            {name: lambda w=writer: fill(w, gathered, sizes.gathered) for name, writer in writers.items()},
            rounds=sizes.rounds,
        )
        for writer in writers.values():
            writer.close()
        for log in logs.values():
            writer = log.open_writer("long")
            fill(writer, sizes.read, sizes.gathered)
            writer.close()
        read = interleaved(
            {name: lambda g=log: drain(g, parse=False) for name, log in logs.items()}, rounds=sizes.rounds
        )
        parsed = interleaved(
            {name: lambda g=log: drain(g, parse=True) for name, log in logs.items()}, rounds=sizes.rounds
        )
    return Table(
        "One journal alone",
        (
            "log",
            "appends/s, one event each",
            f"events/s, {sizes.gathered} a frame",
            "read events/s",
            "read and decoded/s",
        ),
        tuple(
            (
                name,
                rate(sizes.appends, single[name]),
                rate(gathered, many[name]),
                rate(sizes.read, read[name]),
                rate(sizes.read, parsed[name]),
            )
            for name in logs
        ),
        f"Events of {len(EVENT)} bytes, every frame with its head. `machine` flushes every frame to the disk before it is "
        "visible, `process` leaves that to the kernel.",
    )


def fill(writer: JournalWriter, events: int, a_frame: int) -> None:
    for first in range(0, events, a_frame):
        writer.append(HEAD, [EVENT] * min(a_frame, events - first))


def drain(log: Log, *, parse: bool) -> int:
    """The number of events there are."""
    reader = log.open_reader("long")
    found = 0
    while frames := reader.read():
        for frame in frames:
            found += len(frame.events)
            if parse:
                for raw in frame.events:
                    decode(raw)
    reader.close()
    return found


def run(sizes: Sizes) -> list[Table]:
    return [*share_tables(sizes), alone_table(sizes)]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    conclude("log", arguments, lambda: run(QUICK if arguments.quick else Sizes()))


if __name__ == "__main__":
    main()
