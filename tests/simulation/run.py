"""One simulated run: a seed decides every delay, every fault and the scheduler's choices.

Guarantees: the same seed and code give the same journals, byte for byte.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import anyio
import trio
from blake3 import blake3

from t1actors.config import Config, resolve
from t1actors.events import decode
from t1actors.log.errors import LogError
from t1actors.log.merged import merged
from t1actors.payloads import BlobError
from t1actors.runtime.clock import run_virtual
from t1actors.runtime.errors import RuntimeFault, leaves
from tests.simulation.delays import Delays
from tests.simulation.faults import Faults, Planned, plan
from tests.simulation.oracle import Digests, Fault, digests
from tests.simulation.universe import Universe

VIRTUAL_DEADLINE_S = 3000.0
SESSIONS = 60
SETS = (
    "run.restart_budget=100",
    "run.snapshot_events=40",
    "run.backoff_max_s=2.0",
    "tasks.levels=[1]",
    "tasks.heldout_per_level=1",
    "schedule.warmup_steps=1",
    "schedule.recalibrate_steps=1",
    "schedule.train_steps=3",
    "rollout.batch_size=3",
    "rollout.oversample=0.0",
    "rollout.turn_slack=2",
    "rollout.sampler_replicas=2",
    "rollout.agent_deadline_s=100000.0",
    "rollout.trial_deadline_s=100000.0",
    "rollout.load_stall_s=200.0",
    "sandbox.host_base=true",
    "sandbox.max_live=4",
    "sandbox.rate_per_s=5.0",
    "sandbox.burst=3",
    "verify.deadline_s=100000.0",
    "train.snapshot_every=2",
    "train.stall_s=200.0",
)
LOOSE = ("rollout.oversample=0.4",)
"""Which trials a batch holds depends on who is first: nothing is compared, every rule holds."""


@dataclass(frozen=True)
class Variant:
    """``exact``: the digests are to be those of an undisturbed run."""

    exact: bool
    durability: str
    keep_steps: int = 0

    def config(self) -> Config:
        log = (f'run.log_durability="{self.durability}"', f"run.keep_steps={self.keep_steps}")
        sets = (*SETS, *log, *(() if self.exact else LOOSE))
        return resolve(preset="nano", sets=sets).config


@dataclass
class Outcome:
    """How a simulation went. ``digest`` is of all journals' events."""

    seed: int | None
    variant: Variant
    planned: list[Planned]
    deaths: list[str]
    failed: list[str]
    seconds: float
    sessions: int
    moments: int
    syscalls: int
    events: int
    turns_lost: int
    """Cuts at the starts of a run because a power cut had taken a turn's routing."""
    digest: str
    digests: Digests


@functools.cache
def undisturbed(variant: Variant) -> Outcome:
    """The run without faults, and with every delay the same."""
    return _simulate(None, variant, None)


def simulate(seed: int, *, planted: Callable[[], AbstractContextManager[None]] = nullcontext) -> Outcome:
    """The run with the faults of ``seed``, and with a bug in the code while ``planted`` is held. Raises ``Fault``: a rule was
    broken; its notes say what happened."""
    draw = random.Random(seed)
    variant = Variant(
        exact=draw.random() < 0.75,
        durability=draw.choice(["machine", "machine", "process"]),
        keep_steps=draw.choice([0, 0, 2]),
    )
    reference = undisturbed(variant)
    with planted():
        return _simulate(seed, variant, reference)


def _simulate(seed: int | None, variant: Variant, reference: Outcome | None) -> Outcome:
    draw = random.Random(seed)
    delays = Delays(random.Random(draw.random()), scale=0.0 if reference is None else 1.0)
    planned: list[Planned] = []
    if reference is not None:
        seconds = reference.seconds * delays.pace
        planned = plan(draw, seconds=seconds, moments=reference.moments, syscalls=reference.syscalls)
    with tempfile.TemporaryDirectory(dir=_memory()) as root, scheduled(seed or 0):
        universe = Universe(Path(root), variant.config(), delays, exact=variant.exact)
        faults = Faults(universe, planned, draw)
        with universe.powered():
            sessions, seconds = run_virtual(lambda: until_the_end(universe, faults))
            wanted = reference.digests if reference is not None and variant.exact else None
            log = universe.filelog()
            try:
                universe.oracle.judge(log, universe.fileblobs(), universe.shells, wanted)
            except Fault as fault:
                for line in [str(variant), *map(str, planned), *universe.deaths, *universe.failed]:
                    fault.add_note(line)
                raise
            events = [entry.raw for entry in merged(log)]
        return Outcome(
            seed=seed,
            variant=variant,
            planned=planned,
            deaths=universe.deaths,
            failed=universe.failed,
            seconds=seconds,
            sessions=sessions,
            moments=universe.moments,
            syscalls=universe.syscalls,
            events=len(events),
            turns_lost=universe.oracle.turns_lost,
            digest=blake3(b"".join(events)).hexdigest(),
            digests=digests(map(decode, events)),
        )


async def until_the_end(universe: Universe, faults: Faults | None) -> tuple[int, float]:
    """Sessions until the run is finished or failed, and how long that took."""
    sessions, result = 0, None
    with anyio.move_on_after(VIRTUAL_DEADLINE_S) as scope:
        async with anyio.create_task_group() as tasks:
            universe.nursery = tasks
            universe.oracle.stop = universe.end
            if faults is not None:
                tasks.start_soon(faults.run)
            while result is None or result.reason == "interrupted":
                sessions += 1
                if sessions > SESSIONS:
                    universe.oracle.fault(f"the run needs more than {SESSIONS} sessions")
                    break
                try:
                    result = await universe.session()
                except (LogError, RuntimeFault, BlobError, OSError, ExceptionGroup) as error:
                    universe.oracle.fault("; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves(error)))
            universe.end()
    seconds = anyio.current_time()
    if scope.cancelled_caught:
        universe.oracle.fault(f"the run did not end within {VIRTUAL_DEADLINE_S:,.0f} virtual seconds")
    elif result is not None and result.reason == "failed" and not universe.oracle.found:
        universe.oracle.fault(f"the run failed: {result.detail}")
    return sessions, seconds


@contextmanager
def scheduled(seed: int) -> Generator[None]:
    """trio's choices among runnable tasks are drawn from ``seed``."""
    inner = trio._core._run  # pyright: ignore
    before = inner._ALLOW_DETERMINISTIC_SCHEDULING
    inner._ALLOW_DETERMINISTIC_SCHEDULING = True
    inner._r.seed(seed)
    try:
        yield
    finally:
        inner._ALLOW_DETERMINISTIC_SCHEDULING = before


def _memory() -> str | None:
    """A directory in memory: the disk is simulated anyway."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
