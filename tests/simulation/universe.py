"""One simulated machine with its disk, its clock and its processes, and the run on it.

The codec, the journals' files, recovery, the committer, the host, the supervisor and the seven actors are the real code.
Simulated are time, the disk's caches (``disk``), how long things take (``delays``), processes (``child``), and what effects
reach (``effects``). Not simulated: threads, inotify, inherited descriptors.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import pytest

from t1actors.actors.replicas import replica_names
from t1actors.config import Config, to_toml
from t1actors.log.aside import asides_of
from t1actors.log.blobs import FileBlobs
from t1actors.log.filelog import SEGMENT_BYTES, FileLog
from t1actors.log.lock import Holder
from t1actors.runtime.actor import ActorContext
from t1actors.runtime.chronicle import Chronicle, check_configuration
from t1actors.runtime.clock import Clock, system_clock, virtual_clock
from t1actors.runtime.loss import settle_after_loss
from t1actors.runtime.machine import Machine
from t1actors.runtime.plan import ActorPlan, RunPlan
from t1actors.runtime.supervisor import RunResult, supervise_on
from t1actors.sandbox.admission import Admission
from t1actors.sandbox.shared_bucket import SharedTokenBucket
from t1actors.sandbox.shared_file import NodeClock
from tests.simulation.child import SimChild
from tests.simulation.delays import Delays
from tests.simulation.disk import SimDisk
from tests.simulation.effects import COMMANDS, Shell, number
from tests.simulation.incarnation import Incarnation
from tests.simulation.log import Journals, SimLog, appending
from tests.simulation.oracle import Oracle

ACTORS = ("publisher", "pool", "sampler", "verifier", "assembler", "critic", "actor")
SMALL_SEGMENT_BYTES = 24 * 1024
SMALL_PAYLOAD_BYTES = 40
SMALL_PAGE_ROWS = 24
MISHAPS = {"run": 0.03, "create": 0.03, "once": 0.1, "grade": 0.03}


class Universe:
    """See the module. ``exact``: nothing happens in it that an undisturbed run would not have had, too."""

    def __init__(
        self,
        root: Path,
        config: Config,
        delays: Delays,
        *,
        exact: bool,
        commands: Sequence[str] = COMMANDS,
        mishaps: bool = True,
        watched: bool = True,
    ) -> None:
        """``commands``: what the model can say; ``mishaps``: effects fail now and then; ``watched``: the disk may lose
        power."""
        self.root = root
        self.commands = commands
        self._watched = watched
        self._mishaps = mishaps
        self.config = config
        self.delays = delays
        self.exact = exact
        self.oracle = Oracle()
        self.journals = Journals()
        self.shells: dict[str, Shell] = {}
        self.children: dict[str, SimChild] = {}
        self.nursery: anyio.abc.TaskGroup
        self.supervisor: Incarnation | None = None
        self.powerless = False
        """The power is off: descriptors are the disk's to close."""
        self.cursed = ""
        """A replica that dies whenever it is started, until the run is started again."""
        self.free_bytes = 10**12
        self.wall_step_ns = 0
        self.interrupt = anyio.Event()
        """Set it, and the supervisor gets a SIGINT."""
        self.failed: list[str] = []
        """What ended actors of their own accord."""
        self.at_syscall: dict[int, str] = {}
        """What dies at the how manieth system call on a file."""
        self.at_nth_moment: dict[int, str] = {}
        """What dies at the how manieth moment before or after an append or an act."""
        self.doom: Callable[[str], object] = lambda what: None
        """Brings about what ``at_syscall`` and ``at_nth_moment`` name: ``faults``."""
        self.syscalls = 0
        self.moments = 0
        self.boots = 0
        self.deaths: list[str] = []
        self.broken: frozenset[str] = frozenset()
        """Tasks of which nobody can make a sandbox."""
        self._tried: set[str] = set()
        self._creations_s: list[float] = []
        self._lives = 0
        self._born: list[Incarnation] = []
        """Since the machine was started."""
        self._running: Incarnation | None = None
        self._patch = pytest.MonkeyPatch()
        self._disk: SimDisk

    # --- the machine ------------------------------------------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        return self.root / f"disk{self.boots}" / "run"

    def filelog(self) -> FileLog:
        segment_bytes = SMALL_SEGMENT_BYTES if self._watched else SEGMENT_BYTES
        return FileLog(self.run_dir / "log", self.config.run.log_durability, segment_bytes=segment_bytes)

    def fileblobs(self) -> FileBlobs:
        return FileBlobs(self.run_dir / "blobs", self.config.run.log_durability)

    @contextmanager
    def powered(self) -> Generator[None]:
        """From here on system calls on the disk are watched."""
        self.run_dir.mkdir(parents=True)
        (self.run_dir / "config.toml").write_text(to_toml(self.config))
        # A held lock is not waited for in real time.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("t1actors.log.lock._PATIENCE_S", 0.0)
            # Small as everything here is, the routing of first turns is to be a blob, and that of a record several pages.
            patch.setattr("t1actors.payloads.INLINE_LIMIT_BYTES", SMALL_PAYLOAD_BYTES)
            patch.setattr("t1actors.tito.stored.PAGE_ROWS", SMALL_PAGE_ROWS)
            self._switch_on()
            try:
                yield
            finally:
                self._patch.undo()

    def _switch_on(self) -> None:
        self._patch = pytest.MonkeyPatch()
        if self._watched:
            self._disk = SimDisk(self.run_dir.parent, self._patch, self._syscall)
        self.powerless = False

    def power_cut(self, draw) -> None:
        """Everything dies; of what was not flushed, any sector may be there. The machine is on again at once, and nothing
        runs on it."""
        self.deaths.append(f"{anyio.current_time():.3f} power")
        self.powerless = True
        for incarnation in self._born:
            incarnation.die()
        self._born.clear()
        after = self.root / f"disk{self.boots + 1}"
        self._patch.undo()
        self._disk.crash(after, draw)
        shutil.rmtree(self.run_dir.parent)
        self.boots += 1
        self.shells.clear()
        self.journals.durable_at.clear()
        for lock in (after / "run" / "log").glob("*/lock"):
            if text := lock.read_bytes().strip(b" \n\0"):
                holder = msgspec.json.decode(text, type=Holder)
                lock.write_bytes(msgspec.json.encode(Holder(holder.epoch, holder.pid, "lost")).ljust(127) + b"\n")
        if self.config.run.log_durability == "process":
            self.oracle.lost_power_unflushed()
        self._switch_on()

    @contextmanager
    def running(self, incarnation: Incarnation) -> Generator[None]:
        """The code in the block is this process's, which lives."""
        incarnation.gate()
        before, self._running = self._running, incarnation
        try:
            yield
        finally:
            self._running = before

    def _syscall(self, name: str) -> None:
        self.syscalls += 1
        if self._running is not None:
            self._maybe_die(self._running, self.at_syscall.pop(self.syscalls, ""), f"at {name}")

    def at_moment(self, incarnation: Incarnation, what: str) -> None:
        """Before or after an append or an act of ``incarnation``, which may be its last."""
        self.moments += 1
        self._maybe_die(incarnation, self.at_nth_moment.pop(self.moments, ""), what)

    def _maybe_die(self, running: Incarnation, doomed: str, what: str) -> None:
        if doomed == "process" and running is self.supervisor:
            doomed = "supervisor"
        if doomed == "process":
            self.kill(running, what)
        elif doomed:
            self.deaths.append(f"{anyio.current_time():.3f} {doomed}, {running} {what}")
            self.doom(doomed)
        running.gate()

    # --- processes --------------------------------------------------------------------------------------------------------

    def born(self, name: str) -> Incarnation:
        self._lives += 1
        self._born.append(Incarnation(name, self._lives))
        return self._born[-1]

    def kill(self, incarnation: Incarnation, why: str) -> None:
        self.deaths.append(f"{anyio.current_time():.3f} {incarnation} {why}")
        incarnation.die()

    def kill_supervisor(self, *, linger_s: float) -> None:
        """Its actors end with it, ``linger_s`` later."""
        if self.supervisor is None or self.supervisor.dead:
            return
        self.kill(self.supervisor, f"killed, its actors linger {linger_s:.3f} s")
        for child in self.children.values():
            self.nursery.start_soon(child.end_with_supervisor, linger_s)

    def end(self) -> None:
        """Nobody goes on."""
        for incarnation in self._born:
            incarnation.die()
        self.nursery.cancel_scope.cancel()

    def mishap(self, what: str, key: str) -> bool:
        """Whether this goes wrong; the same whoever asks. What changes which trials a batch holds only where nothing is
        compared."""
        if not self._mishaps or (self.exact and what != "run"):
            return False
        return number("mishap", what, key) % 1000 < 1000 * MISHAPS[what]

    def mishap_once(self, key: str) -> bool:
        """Whether a first try goes wrong that a second one makes good."""
        if not self._mishaps or key in self._tried:
            return False
        self._tried.add(key)
        return number("once", key) % 1000 < 1000 * MISHAPS["once"]

    # --- admission --------------------------------------------------------------------------------------------------------

    def admission(self, context: ActorContext) -> Admission:
        """The real one; its file survives power cuts, as one on the disk may."""
        boot = f"boot{self.boots}"
        config = context.config.sandbox
        bucket = SharedTokenBucket(
            self.root / "node" / "bucket",
            rate_per_s=config.rate_per_s,
            burst=config.burst,
            clock=NodeClock(anyio.current_time, boot, boot),
        )
        return Admission(bucket, config.max_live, monotonic=context.monotonic)

    def creating(self) -> None:
        """A try to make a sandbox begins, which admission allowed just now."""
        now_s = anyio.current_time()
        self._creations_s.append(now_s)
        sandbox = self.config.sandbox
        for created, since_s in enumerate(reversed(self._creations_s), 1):
            if created > sandbox.burst + sandbox.rate_per_s * (now_s - since_s) + 1e-6:
                self.oracle.fault(f"{created} sandboxes are made within {now_s - since_s:.3f} s")
                break

    def clock(self) -> Clock:
        clock = virtual_clock()
        return replace(clock, wall_ns=lambda: clock.wall_ns() + self.wall_step_ns, boot_id=f"boot{self.boots}")

    # --- sessions ---------------------------------------------------------------------------------------------------------

    async def session(self) -> RunResult | None:
        """Starts the run, or goes on with it; None when the supervisor or the machine died."""
        incarnation = self.supervisor = self.born("supervisor")
        self.cursed = ""
        run_dir = self.run_dir
        log = SimLog(self, incarnation)
        plan = RunPlan(
            run_dir=run_dir,
            config=self.config,
            actors=tuple(ActorPlan(name, "") for name in self._actors()),
            replicas=frozenset(replica_names(self.config.rollout.sampler_replicas)),
        )
        try:
            await incarnation.spend(self.delays.start())
            with self.running(incarnation):
                settle_after_loss(run_dir, system_clock().boot_id, self.config.run.log_durability)
                self.oracle.settled(asides_of(run_dir / "log") if (run_dir / "log").is_dir() else [])
                check_configuration(log, run_dir, self.config)
            with Chronicle(
                log, clock=self.clock(), code="simulated", appending=appending(self, incarnation)
            ) as chronicle:
                machine = self._machine(incarnation)
                results: list[RunResult] = []

                async def supervise() -> None:
                    results.append(await supervise_on(machine, plan, log, chronicle))

                await incarnation.or_die(supervise)
                return results[0]
        except BaseException:
            if not incarnation.dead:
                raise
            return None
        finally:
            incarnation.die()

    def _actors(self) -> list[str]:
        return [*ACTORS, *replica_names(self.config.rollout.sampler_replicas)[1:]]

    def _machine(self, incarnation: Incarnation) -> Machine:
        def start(actor: ActorPlan, beat_s: float) -> SimChild:
            incarnation.gate()
            child = SimChild(self, actor.name, incarnation, beat_s)
            self.children[actor.name] = child
            self.nursery.start_soon(child.live)
            return child

        @contextmanager
        def signals() -> Generator[AsyncIterator[int]]:
            yield self._signals(incarnation)

        async def end() -> None:
            incarnation.gate()

        return Machine(
            clock=self.clock(),
            chance=self.delays.chance,
            start=start,
            signals=signals,  # pyright: ignore
            free_bytes=lambda: self.free_bytes,
            cpu_seconds=lambda: 0.0,
            rss_bytes=lambda pid: 0,
            reap=lambda pids: None,
            end=end,
            calling=appending(self, incarnation),
        )

    async def _signals(self, incarnation: Incarnation) -> AsyncIterator[int]:
        """SIGINT, once a session, when the schedule says so."""
        self.interrupt = anyio.Event()
        await self.interrupt.wait()
        yield signal.SIGINT
        await anyio.sleep_forever()
