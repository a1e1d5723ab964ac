"""The simulation: how much virtual time a second buys, and what a step of T1's size costs to fold.

    python -m bench.sim [--quick | --write] [--json FILE]

The first part runs seeds of tests/simulation, with all that goes wrong in them. The second has the real actors make one step
of T1's size on virtual time (560 trials of 94 turns, effects simulated), and then recovers each actor from the journals, and
builds the view that reports are made from, each in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.local_run import temporary_directory
from bench.measure import Spread
from bench.tables import Table, conclude, parser
from t1actors.actors.pool import Pool
from t1actors.config import Config, resolve
from t1actors.log.filelog import FileLog
from t1actors.observe.follow import read_run
from t1actors.payloads import BlobError
from t1actors.runtime.actor import ActorContext
from t1actors.runtime.clock import run_virtual
from t1actors.runtime.intents import Intents
from t1actors.runtime.recovery import recover
from tests.simulation.delays import undrawn
from tests.simulation.effects import factory
from tests.simulation.incarnation import Incarnation
from tests.simulation.run import SETS, simulate, until_the_end
from tests.simulation.universe import ACTORS, Universe

STEP = (
    'run.log_durability="process"',
    "run.snapshot_events=0",
    "schedule.warmup_steps=0",
    "schedule.recalibrate_steps=0",
    "schedule.train_steps=1",
    "schedule.evaluate=false",
    "rollout.oversample=0.09375",
    "rollout.turn_slack=0",
    "rollout.sampler_replicas=1",
    "rollout.max_ids=1000000",
    "sandbox.max_live=560",
    "sandbox.rate_per_s=1000.0",
)
"""``rollout.batch_size`` and ``rollout.turn_limit`` say how large the step is."""
VIEW = "the view of reports"


@dataclass(frozen=True)
class Sizes:
    """``seeds`` simulated; ``batch`` trials trained of a step, ``turns`` of each."""

    seeds: int = 40
    batch: int = 512
    turns: int = 94


QUICK = Sizes(seeds=2, batch=4, turns=3)


def seeds_table(sizes: Sizes) -> Table:
    virtual, events, deaths = [], [], 0
    for seed in range(sizes.seeds):
        started_s = time.perf_counter()
        outcome = simulate(seed)
        seconds = time.perf_counter() - started_s
        virtual.append(outcome.seconds / seconds)
        events.append(outcome.events / seconds)
        deaths += len(outcome.deaths)
    return Table(
        "Seeds of the simulation",
        ("seeds", "deaths", "virtual seconds a second", "events a second"),
        ((sizes.seeds, deaths, Spread.of(virtual), Spread.of(events)),),
        "The whole actor graph, with recovery from every death and all checks at the end.",
    )


def step_config(sizes: Sizes) -> Config:
    size = (f"rollout.batch_size={sizes.batch}", f"rollout.turn_limit={sizes.turns}")
    return resolve(preset="nano", sets=(*SETS, *STEP, *size)).config


def make_step(root: Path, sizes: Sizes) -> Universe:
    """One step of training, on virtual time, whose agents use all their turns."""
    universe = Universe(root, step_config(sizes), undrawn(), exact=True, commands=("ls",), mishaps=False, watched=False)
    with universe.powered():
        run_virtual(lambda: until_the_end(universe, None))
    if universe.oracle.found:
        raise RuntimeError(universe.oracle.found[0])
    return universe


def folds_table(sizes: Sizes) -> Table:
    with temporary_directory() as root:
        started_s = time.perf_counter()
        universe = make_step(root, sizes)
        seconds = time.perf_counter() - started_s
        run_dir = universe.run_dir
        log = FileLog(run_dir / "log")
        size = sum(path.stat().st_size for path in (run_dir / "log").rglob("*.seg"))
        rows = [("made by all actors", log.events(), seconds, log.events() / seconds, None)]
        rows += [fold_in_a_process(run_dir, name, sizes) for name in (*ACTORS, VIEW)]
    return Table(
        f"One step of {step_config(sizes).launched_per_step} trials of {sizes.turns} turns",
        ("what", "events", "seconds", "events a second", "memory at its peak, MB"),
        tuple(rows),
        f"{size / 1e6:,.0f} MB of journals. A recovery folds what its actor had read and said; memory is what the fold "
        "needed beside the imports of its process.",
    )


def fold_in_a_process(run_dir: Path, name: str, sizes: Sizes) -> tuple[str, int, float, float, float]:
    command = [sys.executable, "-m", "bench.sim", "--fold", name, str(run_dir), str(sizes.batch), str(sizes.turns)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    events, seconds, kb = json.loads(done.stdout)
    return name, events, seconds, events / seconds, kb / 1024


def fold(run_dir: Path, name: str, sizes: Sizes) -> Iterator[float]:
    """Events and seconds of one fold, and the KB that the process's memory has grown by at most."""
    folds: Callable[[], int] = (lambda: view(run_dir)) if name == VIEW else recovery(run_dir, name, step_config(sizes))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before_kb = peak_kb()
    started_s = time.perf_counter()
    yield folds()
    yield time.perf_counter() - started_s
    yield peak_kb() - before_kb


def peak_kb() -> int:
    """Of this process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def view(run_dir: Path) -> int:
    read_run(run_dir)
    return FileLog(run_dir / "log").events()


class NoBlobs:
    """Recovery opens no blob."""

    def get(self, digest: str) -> memoryview:
        raise BlobError(digest)


def recovery(run_dir: Path, name: str, config: Config) -> Callable[[], int]:
    context = ActorContext(name, run_dir, config, NoBlobs(), 1, time.monotonic)  # pyright: ignore
    # The real pool makes nothing before it runs; the simulated one needs its world to be made at all.
    actor: Any = Pool(context) if name == "pool" else factory(name, None, Incarnation(name, 0))(context)  # pyright: ignore
    log = FileLog(run_dir / "log")

    def recovered() -> int:
        found = recover(
            log,
            name=name,
            epoch=1,
            initial=actor.initial(),
            fold=actor.fold,
            reads=actor.reads,
            intents=Intents(name, actor.effect_type),
        )
        own = log.open_reader(name, from_sequence=2**62)
        own.read()
        return found.inputs + own.durable_next

    return recovered


def run(sizes: Sizes) -> list[Table]:
    return [seeds_table(sizes), folds_table(sizes)]


def main() -> None:
    made = parser(__doc__, writes=True)
    made.add_argument("--fold", nargs=4, metavar=("NAME", "RUN", "BATCH", "TURNS"), help="used by itself")
    arguments = made.parse_args()
    if arguments.fold is not None:
        name, run_dir, batch, turns = arguments.fold
        print(json.dumps([*fold(Path(run_dir), name, Sizes(batch=int(batch), turns=int(turns)))]))
        return
    conclude("sim", arguments, lambda: run(QUICK if arguments.quick else Sizes()))


if __name__ == "__main__":
    main()
