"""Runs a run: every actor as its own process, restarted when it dies, all of them stopped together.

Guarantees:
- Whoever dies is started again, after its whole process group is gone, until its restart budget is spent; then the
  run fails and names the actor, or goes on without it while there are other replicas of it. A failure that a restart cannot
  heal fails the run at once.
- Who is not ready in time, hangs, or says that an effect does, is killed and started again, too, and the reason is recorded.
- Every start, readiness and end of an actor is an event in the journal ``supervisor``, durable before the next one
  begins. ActorStarted comes after the actor holds its journal and carries the epoch which that journal gave it.
- SIGINT: a stop after the phase. It is recorded as StopRequested; the concluding actor answers RunPaused where nothing is
  under way that would have to be done twice, and then everything is stopped cleanly. A second SIGINT, SIGTERM, or
  cancelling the caller: a clean stop at once. A SIGINT while that goes on: everything is killed.
- If the supervisor itself is killed, the actors end with it; starting it again on the same run directory resumes the
  run. If the machine was lost and nothing had been flushed, the journals are first cut to what fits together; each cut is an
  event.
- Too little free disk is an event, before a full one ends the run; so is that there is room again. With ``run.keep_steps``
  what only older steps need is deleted as the run goes on.
- No torch here: what actors import is theirs.

Left to others: displays read the log; which actors there are is the caller's plan.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import anyio

from t1actors.config import digest, from_toml, to_toml
from t1actors.events import (
    ActorReady,
    ActorStarted,
    ActorStopped,
    DiskFreed,
    DiskLow,
    JournalCut,
    ReplicaReclaimed,
    RunStopped,
    StopRequested,
)
from t1actors.log.filelog import FileLog
from t1actors.log.interface import Log
from t1actors.runtime.actor_log import log_tail
from t1actors.runtime.appending import in_thread, inline
from t1actors.runtime.chronicle import Chronicle, check_configuration, recorded
from t1actors.runtime.clock import system_clock
from t1actors.runtime.conclusion import concluded
from t1actors.runtime.errors import EXIT_UNRECOVERABLE, RunDirectoryError
from t1actors.runtime.fingerprint import code_version
from t1actors.runtime.keeping import keep_last_steps
from t1actors.runtime.loss import cuts_of, settle_after_loss
from t1actors.runtime.machine import ChildProcess, Machine, this_machine
from t1actors.runtime.orphans import adopting
from t1actors.runtime.plan import ActorPlan, RunPlan
from t1actors.runtime.restarts import Restarts

REAP_EVERY_S = 5.0
"""How often adopted processes that ended are reaped."""
BEATS = 4
"""How often an actor says that it lives, in the time after which it counts as hung."""
SECOND_CHANCE_S = 10.0
"""Silence is asked about once more: the supervisor itself may have stood still (Ctrl-Z, a machine that was suspended)."""
DISK_EVERY_S = 2.0
"""How often it is asked how much of the disk is free."""
DISK_ENOUGH = 1.25
"""Times the low mark must be free before the disk is not low any more: so that it does not go back and forth."""


@dataclass(frozen=True)
class RunResult:
    """``detail`` says what a person needs to know; ``failed_actor`` and ``log_tail`` are set when an actor failed
    the run. ``cpu_seconds``: user and system time of the supervisor and of every process it waited for."""

    reason: Literal["finished", "failed", "interrupted"]
    detail: str
    seconds: float
    cpu_seconds: float
    restarts: int
    failed_actor: str = ""
    log_tail: tuple[str, ...] = ()


async def supervise(plan: RunPlan) -> RunResult:
    """Runs ``plan`` to its end. Runs beside other tasks of the caller, such as a display.

    Raises:
        RunDirectoryError: the run directory belongs to another configuration.
        JournalFenced: another supervisor has this run.
    """
    config = plan.config.run
    code = code_version()
    log = FileLog(plan.run_dir / "log", config.log_durability, segment_bytes=config.segment_bytes)
    settle_after_loss(plan.run_dir, system_clock().boot_id, config.log_durability)
    check_configuration(log, plan.run_dir, plan.config, plan.numerics.kernels)
    _prepare(plan)
    appending = in_thread() if config.log_durability == "machine" else inline
    with adopting(), Chronicle(log, clock=system_clock(), code=code, appending=appending) as chronicle:
        return await supervise_on(this_machine(plan), plan, log, chronicle)


async def supervise_on(machine: Machine, plan: RunPlan, log: Log, chronicle: Chronicle) -> RunResult:
    """The part of ``supervise`` that can be simulated: ``plan`` on ``machine``, whose journals are ``log``'s."""
    supervisor = _Supervisor(plan, log, chronicle, machine)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.stop_when_cancelled)
        with anyio.CancelScope(shield=True):
            await supervisor.run()
        tasks.cancel_scope.cancel()
    return supervisor.result()


def _prepare(plan: RunPlan) -> None:
    path = plan.run_dir / "config.toml"
    (plan.run_dir / "logs").mkdir(parents=True, exist_ok=True)
    if path.exists():
        if digest(from_toml(path.read_text(), origin=str(path))) != digest(plan.config):
            raise RunDirectoryError(
                f"{path} holds another configuration than this run's: resume it with its own, or choose a new run "
                "directory"
            )
        return
    path.write_text(to_toml(plan.config))


@dataclass
class _Life:
    """What is known of one process of an actor."""

    child: ChildProcess
    started_s: float
    epoch: int = 0
    reason: str = ""
    ready: bool = False
    heard_s: float = 0.0
    """When it last said something."""


class _Supervisor:
    def __init__(self, plan: RunPlan, log: Log, chronicle: Chronicle, machine: Machine) -> None:
        self._plan = plan
        self._log = log
        self._chronicle = chronicle
        self._machine = machine
        self._clock = machine.clock
        self._stopping = anyio.Event()
        self._kill_now = anyio.Event()
        self._lives: dict[str, _Life] = {}
        self._reclaimed: set[str] = set()
        self._restarts = 0
        self._reason: Literal["finished", "failed", "interrupted"] = "interrupted"
        self._detail = ""
        self._failed_actor = ""
        self._log_tail: tuple[str, ...] = ()
        self._rests_on: dict[str, int] = {}
        self._seconds = 0.0
        self._cpu_seconds = 0.0

    async def run(self) -> None:
        # Signals are taken from the first event to the last, so that none cuts the record short.
        with self._machine.signals() as signals:
            started_s, cpu_s = self._clock.monotonic(), self._machine.cpu_seconds()
            plan = self._plan
            await self._chronicle.begin(plan.run_dir, plan.config, plan.environment, plan.numerics)
            await self._record_cuts()
            async with anyio.create_task_group() as watching:
                watching.start_soon(self._follow_conclusion)
                watching.start_soon(self._reap_orphans)
                watching.start_soon(self._watch_disk)
                if plan.config.run.keep_steps:
                    watching.start_soon(self._keep_last_steps)
                if signals is not None:
                    watching.start_soon(self._follow_signals, signals)
                async with anyio.create_task_group() as keeping:
                    for actor in self._plan.actors:
                        keeping.start_soon(self._keep, actor)
                watching.cancel_scope.cancel()
            await self._machine.end()
            self._cpu_seconds = self._machine.cpu_seconds() - cpu_s
            self._seconds = self._clock.monotonic() - started_s
            reason = f"{self._reason}: {self._detail}" if self._reason == "failed" else self._reason
            stopped = RunStopped(reason=reason, cpu_s=self._cpu_seconds)
            await self._chronicle.record([stopped], rests_on=self._rests_on)

    async def _record_cuts(self) -> None:
        """What was cut off the journals and is not recorded yet: by this start, by one that died before it came to here, or
        where the run was salvaged."""
        known = {event.path for event in recorded(self._log, JournalCut)}
        if cuts := [cut for cut in cuts_of(self._plan.run_dir) if cut.path not in known]:
            await self._chronicle.record(cuts)

    def result(self) -> RunResult:
        """After ``run``."""
        return RunResult(
            reason=self._reason,
            detail=self._detail,
            seconds=self._seconds,
            cpu_seconds=self._cpu_seconds,
            restarts=self._restarts,
            failed_actor=self._failed_actor,
            log_tail=self._log_tail,
        )

    # --- why it stops -------------------------------------------------------------------------------------------------

    def _stop(self, reason: Literal["finished", "failed", "interrupted"], detail: str) -> None:
        if not self._stopping.is_set():
            self._reason, self._detail = reason, detail
            self._stopping.set()

    async def stop_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._stop("interrupted", "cancelled")

    async def _follow_conclusion(self) -> None:
        end = await concluded(self._log, self._plan.concludes, session=self._chronicle.session)
        if not self._stopping.is_set():
            self._rests_on = {end.journal: end.sequence}
        self._stop(end.reason, end.detail)

    async def _follow_signals(self, signals: AsyncIterator[signal.Signals]) -> None:
        asked = False
        async for number in signals:
            if self._stopping.is_set():
                if number == signal.SIGINT:
                    self._kill_now.set()
            elif number == signal.SIGINT and not asked:
                asked = True
                await self._chronicle.record([StopRequested(by=number.name)])
            else:
                self._stop("interrupted", f"stopped by {number.name}")

    def _fail(self, life: _Life, detail: str) -> None:
        if not self._stopping.is_set():
            self._failed_actor = life.child.name
            self._log_tail = log_tail(life.child.log_path)
        self._stop("failed", detail)

    # --- one actor ----------------------------------------------------------------------------------------------------

    async def _keep(self, actor: ActorPlan) -> None:
        config = self._plan.config.run
        restarts = Restarts(config.restart_budget, config.backoff_s, config.backoff_max_s)
        while not self._stopping.is_set():
            child = self._machine.start(actor, self._plan.silence_s / BEATS)
            life = self._lives[actor.name] = _Life(child, self._clock.monotonic())
            exit_code = await self._accompany(life)
            del self._lives[actor.name]
            reason = life.reason or _words(exit_code)
            stopped = ActorStopped(actor=actor.name, epoch=life.epoch, exit_code=exit_code, reason=reason)
            await self._chronicle.record([stopped])
            if self._stopping.is_set():
                return
            log = f"see {child.log_path}"
            if exit_code == EXIT_UNRECOVERABLE:
                self._fail(life, f"actor {actor.name}: {reason}; {log}")
                return
            now_s = self._clock.monotonic()
            delay_s = restarts.died(now_s=now_s, lived_s=now_s - life.started_s, chance=self._machine.chance())
            if delay_s is None:
                died = f"died again after {config.restart_budget} restarts in ten minutes: {reason}; {log}"
                if not await self._give_up(actor.name, died):
                    self._fail(life, f"actor {actor.name} {died}")
                return
            with anyio.move_on_after(delay_s):
                await self._stopping.wait()
                return
            self._restarts += 1

    async def _give_up(self, name: str, reason: str) -> bool:
        """Whether the run can go on without that actor, as it is told then."""
        others = self._plan.replicas - self._reclaimed - {name}
        if name not in self._plan.replicas or not others:
            return False
        self._reclaimed.add(name)
        await self._chronicle.record([ReplicaReclaimed(replica=name, reason=reason)])
        return True

    async def _accompany(self, life: _Life) -> int:
        """From its start to its end; its exit code once nothing of its group is left."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, life)
            tasks.start_soon(self._miss, life)
            tasks.start_soon(self._stop_in_time, life)
            await life.child.exited()
            tasks.cancel_scope.cancel()
        for line in life.child.told():
            self._last_words(life, line)
        return await life.child.end()

    async def _listen(self, life: _Life) -> None:
        with anyio.move_on_after(self._plan.ready_deadline_s) as scope:
            async for line in life.child.lines():
                word, _, rest = line.partition(" ")
                life.heard_s = self._clock.monotonic()
                if word == "opened":
                    life.epoch = int(rest)
                    name = life.child.name
                    started = ActorStarted(actor=name, journal=name, epoch=life.epoch, pid=life.child.pid)
                    await self._chronicle.record([started])
                elif word == "ready":
                    scope.deadline = float("inf")
                    life.ready = True
                    seconds = self._clock.monotonic() - life.started_s
                    rss_bytes = self._machine.rss_bytes(life.child.pid)
                    name, epoch = life.child.name, life.epoch
                    await self._chronicle.record(
                        [ActorReady(actor=name, epoch=epoch, seconds=seconds, rss_bytes=rss_bytes)]
                    )
                elif word == "stalled":
                    life.reason = rest
                    life.child.kill()
                else:
                    self._last_words(life, line)
        if scope.cancelled_caught:
            life.reason = f"not ready within {self._plan.ready_deadline_s:.0f} s"
            life.child.kill()

    async def _miss(self, life: _Life) -> None:
        """Kills an actor that was ready and has fallen silent: stopped by a signal, or with an event loop that hangs."""
        silence_s = self._plan.silence_s
        while True:
            await anyio.sleep(silence_s / BEATS)
            if not life.ready or self._clock.monotonic() - life.heard_s < silence_s:
                continue
            noticed_s = self._clock.monotonic()
            await anyio.sleep(min(SECOND_CHANCE_S, silence_s))
            if life.heard_s < noticed_s:
                life.reason = f"no sign of life for {self._clock.monotonic() - life.heard_s:.0f} s"
                life.child.kill()
                return

    def _last_words(self, life: _Life, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "failed":
            life.reason = rest
        elif word == "opened":
            life.epoch = int(rest)

    async def _stop_in_time(self, life: _Life) -> None:
        await self._stopping.wait()
        life.child.terminate()
        with anyio.move_on_after(self._plan.stop_grace_s):
            await self._kill_now.wait()
        life.child.kill()

    async def _watch_disk(self) -> None:
        mark = self._plan.config.run.low_disk_mb * 1_000_000
        low = False
        while mark:
            free = self._machine.free_bytes()
            if not low and free < mark:
                low = True
                await self._chronicle.record([DiskLow(free_bytes=free)])
            elif low and free >= mark * DISK_ENOUGH:
                low = False
                await self._chronicle.record([DiskFreed(free_bytes=free)])
            await anyio.sleep(DISK_EVERY_S)

    async def _keep_last_steps(self) -> None:
        await keep_last_steps(
            self._log,
            self._plan.run_dir,
            self._plan.config.run.keep_steps,
            publisher=self._plan.concludes,
            record=self._chronicle.record,
            calling=self._machine.calling,
        )

    async def _reap_orphans(self) -> None:
        while True:
            await anyio.sleep(REAP_EVERY_S)
            self._machine.reap({life.child.pid for life in self._lives.values()})


def _words(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"exit status {exit_code}"
