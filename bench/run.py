"""A run of processes, from its own log: phases, memory, start-up, bytes, recovery after kill -9, replay.

    python -m bench.run [--preset smoke|demo] [--run DIR] [--quick] [--json FILE]

Makes one undisturbed run, which it reports on and replays, and a smaller one in which each of the seven actors is killed.
With ``--run`` an existing run is reported on instead; nothing in it is written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import trio

from bench.kills import Recovery, run_with_kills
from bench.local_run import temporary_directory
from bench.measure import Spread
from bench.replaying import replay_table
from bench.tables import Table, conclude, parser
from t1actors.cli.run import run_plan
from t1actors.config import Config, resolve
from t1actors.events import ActorStarted, ActorStopped, RunFinished, decode
from t1actors.log.filelog import FileLog
from t1actors.log.frame import Frame
from t1actors.log.merged import merged_frames
from t1actors.observe.figures import figures
from t1actors.observe.fold import fold
from t1actors.observe.follow import follow
from t1actors.observe.view import RunView, StepView
from t1actors.runtime.supervisor import RunResult, supervise

SMALL = ("tasks.train_count=24", "tasks.heldout_per_level=1", "rollout.batch_size=6", "schedule.evaluate=false")
KILL_RUN = (*SMALL, "schedule.recalibrate_steps=2", "schedule.train_steps=9")


@dataclass(frozen=True)
class Sizes:
    """``replays`` rounds over the ``replayed`` last training steps."""

    preset: str = "smoke"
    sets: tuple[str, ...] = ()
    kill_sets: tuple[str, ...] = KILL_RUN
    replayed: int = 3
    replays: int = 3


QUICK = Sizes(
    sets=(*SMALL, "rollout.batch_size=3", "schedule.recalibrate_steps=1", "schedule.train_steps=2"),
    kill_sets=(*KILL_RUN, "rollout.batch_size=3"),
    replayed=1,
    replays=1,
)


# --- making runs --------------------------------------------------------------------------------------------------------


def watched_run(run_dir: Path, config: Config) -> tuple[RunResult, dict[str, int]]:
    """A run to its end, and the largest resident memory of every actor's process, bytes."""
    peaks: dict[str, int] = {}

    async def watch(ended: trio.Event) -> None:
        pids: dict[str, int] = {}
        async for frames in follow(FileLog(run_dir / "log"), ended=ended.is_set):
            for event in (decode(raw) for frame in frames for raw in frame.events):
                if isinstance(event, ActorStarted):
                    pids[event.actor] = event.pid
            for name, pid in pids.items():
                peaks[name] = max(peaks.get(name, 0), peak_rss_bytes(pid))
            await trio.sleep(0.5)

    async def main() -> RunResult:
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, ended)
            result = await supervise(run_plan(run_dir, config))
            ended.set()
        return result

    run_dir.mkdir(parents=True)
    return trio.run(main), peaks


def peak_rss_bytes(pid: int) -> int:
    """Of a living process; 0 for one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


# --- tables -------------------------------------------------------------------------------------------------------------


def run_table(view: RunView) -> Table:
    found = figures(view)
    phases = "; ".join(f"{name} {seconds:.1f} s" for name, seconds in found.seconds_by_phase.items())
    train = [s.seconds("rollout") for s in view.of_purpose("train")]
    sampled = sum(step.sampled for step in view.steps.values())
    return Table(
        "The run",
        ("training steps", "trials a step", "sampled tokens", "seconds", "CPU seconds", "trials/s",
         "rollout s a training step"),
        (
            (
                found.steps,
                max(step.batch_size for step in view.steps.values()),
                sampled,
                found.seconds,
                found.cpu_seconds,
                sum(len(step.kept) for step in view.steps.values()) / found.seconds,
                Spread.of(train) if train else None,
            ),
        ),
        f"Sums of phases over all steps, which overlap: {phases}. CPU seconds are those of the processes that the supervisor "
        "waited for; sandboxes are not among them.",
    )  # fmt: skip


def step_table(view: RunView) -> Table:
    def row(step: StepView) -> tuple[object, ...]:
        blobs = sum(count for kind, count in step.size_bytes.items() if kind != "events")
        done_ns = step.done_ns or step.opened_ns
        phases = (step.seconds(phase) or None for phase in ("rollout", "values", "critic", "actor"))
        return (step.step, step.purpose, len(step.kept), (done_ns - step.opened_ns) / 1e9, *phases,
                step.size_bytes["events"] / 1e3, blobs / 1e3)  # fmt: skip

    return Table(
        "Steps",
        ("step", "purpose", "trials", "open to done s", "rollout s", "values s", "critic s", "actor s",
         "events kB", "blobs kB"),
        tuple(row(step) for _, step in sorted(view.steps.items())),
        "The rollout of step t + 1 overlaps the training of step t. Blobs as written: states and weights that no snapshot "
        "needs are deleted later.",
    )  # fmt: skip


def disk_table(run_dir: Path, view: RunView) -> Table:
    events = sum(step.size_bytes["events"] for step in view.steps.values()) + view.run_bytes["events"]
    journals = {path.parent.name: path.stat().st_size for path in sorted((run_dir / "log").glob("*/*.seg"))}
    blobs = sum(path.stat().st_size for path in (run_dir / "blobs").glob("*/*"))
    rows = [*((f"journal {name}", size / 1e6) for name, size in journals.items()), ("blobs that are left", blobs / 1e6)]
    return Table(
        "On disk at the end", ("what", "MB"), tuple(rows), f"Events alone are {events / 1e6:.2f} MB of the journals."
    )


def actor_table(view: RunView, peaks: Mapping[str, int], stops: Mapping[str, float]) -> Table:
    return Table(
        "Actor processes",
        ("actor", "start to ready s", "rss when ready MB", "largest rss MB", "told to stop until gone s"),
        tuple(
            (
                actor.name,
                actor.start_s,
                actor.rss_bytes / 1e6,
                peaks[actor.name] / 1e6 if peaks.get(actor.name) else None,
                stops.get(actor.name),
            )
            for actor in view.actors.values()
            if actor.starts
        ),
        "All start at once and share the cores. Resident memory counts pages that processes share, in each of them.",
    )


def stop_seconds(frames: Sequence[Frame]) -> dict[str, float]:
    """From RunFinished to each actor's last ActorStopped."""
    times = [(frame.head.wall_ns, event) for frame in frames for event in map(decode, frame.events)]
    finished_ns = next((wall_ns for wall_ns, event in times if isinstance(event, RunFinished)), None)
    if finished_ns is None:
        return {}
    return {
        event.actor: (wall_ns - finished_ns) / 1e9
        for wall_ns, event in times
        if isinstance(event, ActorStopped) and wall_ns >= finished_ns
    }


def recovery_table(result: RunResult, found: Mapping[str, Recovery]) -> Table:
    return Table(
        "Recovery after kill -9 (target: under 10 s)",
        ("actor", "kill to ActorStopped s", "ActorStopped to ActorReady s", "kill to ready s"),
        tuple((name, r.noticed_s, r.ready_s, r.noticed_s + r.ready_s) for name, r in found.items()),
        f"One run, each actor killed once as a step opens; the run {result.reason} with {result.restarts} restarts. Ready: "
        "its state is folded from the log again and its effects go on.",
    )


# --- all of it ----------------------------------------------------------------------------------------------------------


def run(sizes: Sizes, existing: Path | None) -> list[Table]:
    with ExitStack() as stack:
        peaks: dict[str, int] = {}
        if existing is None:
            folder = stack.enter_context(temporary_directory())
            run_dir = folder / "run"
            result, peaks = watched_run(run_dir, resolve(preset=sizes.preset, sets=sizes.sets).config)
            _finished(result)
        else:
            run_dir = existing
        frames = list(merged_frames(FileLog(run_dir / "log")))
        view = fold(RunView(), frames)
        tables = [
            run_table(view),
            actor_table(view, peaks, stop_seconds(frames)),
            step_table(view),
            disk_table(run_dir, view),
            replay_table(run_dir, last=sizes.replayed, rounds=sizes.replays),
        ]
        if existing is None:
            config = resolve(preset=sizes.preset, sets=sizes.kill_sets).config
            result, recoveries = run_with_kills(run_dir.parent / "kills", config, first_step=1)
            _finished(result)
            tables.append(recovery_table(result, recoveries))
        return tables


def _finished(result: RunResult) -> None:
    if result.reason != "finished":
        raise RuntimeError(f"the run {result.reason}: {result.detail}\n" + "\n".join(result.log_tail))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--preset", default="smoke", help="of the undisturbed run")
    made.add_argument("--run", type=Path, metavar="DIR", help="report on this run instead of making one")
    arguments = made.parse_args()
    sizes = QUICK if arguments.quick else Sizes(preset=arguments.preset)
    conclude("run", arguments, lambda: run(sizes, arguments.run))


if __name__ == "__main__":
    main()
