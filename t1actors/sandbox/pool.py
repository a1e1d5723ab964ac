"""Sandboxes under admission: the object to embed.

    pool = SandboxPool(backend, Admission(TokenBucket(rate_per_s=100, burst=32), max_live=128))
    async with backend.running(), pool.running():
        async with pool.sandbox(SandboxSpec(key="one")) as sandbox:
            result = await sandbox.run("ls", limit_s=5)
            archive = await sandbox.seal()

Two ways to use it. With ``running`` the pool owns what lives: leases are kept while the block is open, and no sandbox is
left when it ends, however it ends. Without it (the pool actor, which is to find its sandboxes again after a crash) call
``reattach`` first and ``kill`` what you created; a lease ends what nobody renews.

Guarantees: a slot is held exactly while its sandbox may exist, so a creation that failed or was cancelled gives it back
and so does a ``kill`` that succeeded. A creation that infrastructure failed is tried again, within a bound, and takes a
token each time (``retries``). What nobody owns is removed at the start (``reattach``). Nothing is remembered but the
slots and counts. Under asyncio all this holds for ``task.cancel()``, timeouts and aborting task groups too. For one event
loop; not thread-safe.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio

from t1actors.nursery import apart, task_group
from t1actors.sandbox.admission import Admission
from t1actors.sandbox.creating import create_with_retries
from t1actors.sandbox.errors import SandboxError, SandboxGone
from t1actors.sandbox.interface import Created, Leftover, RunRequest, RunResult, SandboxBackend, SandboxSpec
from t1actors.sandbox.retries import Retry, RetryPolicy

KILL_PATIENCE_S = 30.0
"""How long leaving a block waits for a sandbox to end; its lease ends one that does not."""


_COUNTED = ("created", "reclaimed", "leaked", "retries", "failed")


@dataclass(frozen=True)
class PoolCreated:
    """What the backend made, and the seconds waited for tokens of the rate and for a slot below the cap. ``retried``: the
    tries that failed before."""

    created: Created
    token_wait_s: float
    slot_wait_s: float
    retried: tuple[Retry, ...] = ()


@dataclass(frozen=True)
class PoolMetrics:
    """``waiting`` and ``live`` now (waiting for a slot or a token; holding a slot), the rest since the pool was made.
    ``reclaimed``: killed. ``leaked``: things that nobody owned any more, found and removed. ``failed``: creations that were
    given up."""

    waiting: int
    live: int
    created: int
    reclaimed: int
    leaked: int
    retries: int
    failed: int


class SandboxPool:
    """See the module. ``sandbox`` arguments are the ``key`` of the spec that created it; every call but ``create``,
    ``reattach`` and ``kill`` raises ``SandboxGone`` when nothing lives under it."""

    def __init__(
        self,
        backend: SandboxBackend,
        admission: Admission,
        retries: RetryPolicy = RetryPolicy(),  # noqa: B008
    ) -> None:
        self._backend = backend
        self._admission = admission
        self._retries = retries
        self._counts: Counter[str] = Counter()

    @property
    def metrics(self) -> PoolMetrics:
        """How the pool stands now."""
        admission = self._admission
        counts = {name: self._counts[name] for name in _COUNTED}
        return PoolMetrics(waiting=admission.waiting, live=len(admission.live) - admission.granted, **counts)

    # --- owning what lives --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self, *, renew_every_s: float = 30.0) -> AsyncGenerator[list[str]]:
        """Own the backend's sandboxes while the block is open; gives the keys of those that lived before (a crashed
        program's): use them again by their keys, or leave them to be killed at the end like all others.

        Args:
            renew_every_s: choose a quarter of the shortest ``lease_s``, so that a sandbox survives a long wait for a model.

        Raises:
            SandboxError: at the end, when a sandbox could not be killed within ``KILL_PATIENCE_S``: names it.
        """
        async with task_group() as tasks:
            tasks.start_soon(self.keep_leases, renew_every_s)
            try:
                yield await self.reattach()
            finally:
                await apart(self._kill_all)
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def sandbox(self, spec: SandboxSpec, *, deadline_s: float | None = None) -> AsyncGenerator[PooledSandbox]:
        """One sandbox for the block: created as by ``create``, killed however the block ends."""
        made = await self.create(spec, deadline_s=deadline_s)
        try:
            yield PooledSandbox(self, spec.key, made)
        finally:
            await apart(lambda: self._kill_in_time(spec.key))

    async def reattach(self) -> list[str]:
        """The keys of sandboxes that live already; each takes a slot. What is left of dead ones that nobody owns is removed.
        Call it first.

        Raises:
            SandboxUnavailable: the machine's slots are shared, and another pool of this name lives.
        """
        await self.reap()
        keys = await self._backend.list()
        await self._admission.adopt_all(keys)
        return keys

    async def reap(self) -> list[Leftover]:
        """Remove what is left of this backend's sandboxes that nobody owns; touches none that lives. At any time."""
        found = await self._backend.reap()
        self._counts["leaked"] += len(found)
        return found

    async def keep_leases(self, every_s: float) -> None:
        """Renew, for ever, the lease of every sandbox that holds a slot: one whose agent waits for its model is not called.
        Run it as a task; ``running`` does."""
        while True:
            await anyio.sleep(every_s)
            for key in sorted(self._admission.live):
                with suppress(SandboxGone):  # being created, or killed just now
                    await self.renew(key)

    # --- one sandbox --------------------------------------------------------------------------------------------------

    async def create(
        self,
        spec: SandboxSpec,
        *,
        deadline_s: float | None = None,
        on_retry: Callable[[Retry], object] = lambda retry: None,
    ) -> PoolCreated:
        """Wait for a slot and a token, then create within ``deadline_s`` (without the wait; every try has as long).
        Idempotent by ``spec.key``. Cancelled or failed, it leaves no sandbox and gives the slot back. ``on_retry`` hears of
        each try that failed and is followed by another.

        Raises:
            TimeoutError: not created within ``deadline_s``, not once.
            SandboxRefused: the spec makes no sense: says what in it.
            SandboxUnavailable: no sandbox can be made on this host (any more).
        """
        admitted = await self._admission.admit(spec.key)
        token_waits_s = [admitted.token_wait_s]
        retried: list[Retry] = []
        finished = False

        def note(retry: Retry) -> None:
            retried.append(retry)
            self._counts["retries"] += 1
            on_retry(retry)

        async def token() -> None:
            token_waits_s.append(await self._admission.token())

        try:
            created = await create_with_retries(
                self._backend, spec, self._retries, deadline_s=deadline_s, on_retry=note, admitted=token
            )
            finished = True
        except (SandboxError, TimeoutError):
            self._counts["failed"] += 1
            raise
        finally:
            if not finished:  # the backend leaves nothing behind
                self._admission.release(spec.key)
        self._counts["created"] += not created.existed
        return PoolCreated(created, sum(token_waits_s), admitted.slot_wait_s, tuple(retried))

    async def run(self, sandbox: str, request: RunRequest) -> RunResult:
        """One command in the persistent shell; commands of one sandbox run one after the other. Idempotent by
        ``request.key``. Cancelled, the command goes on within its limit. Raises ``SandboxDied``, ``SandboxSealed``,
        ``SandboxRefused``."""
        return await self._backend.run(sandbox, request)

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes | None:
        """A regular file's bytes, read from outside following no link; None when there is none of at most ``max_bytes``."""
        return await self._backend.read_file(sandbox, path, max_bytes=max_bytes)

    async def seal(self, sandbox: str, *, paths: tuple[str, ...] = ("/",)) -> bytes:
        """End every process inside; the canonical archive (``sandbox.archive``), rooted at /, of what was written under
        ``paths``. Idempotent: nothing changes the tree afterwards."""
        return await self._backend.seal(sandbox, paths=paths)

    async def renew(self, sandbox: str) -> None:
        """Start the lease anew, as every other call does."""
        await self._backend.renew(sandbox)

    async def kill(self, sandbox: str) -> None:
        """Idempotent. No process, mount, control group or directory is left; the slot is free for the next in line."""
        await self._backend.kill(sandbox)
        self._counts["reclaimed"] += sandbox in self._admission.live
        self._admission.release(sandbox)

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _kill_in_time(self, key: str) -> None:
        with anyio.move_on_after(KILL_PATIENCE_S, shield=True):
            await self.kill(key)

    async def _kill_all(self) -> None:
        """Try all, then say which could not be killed."""
        failures: list[str] = []

        async def kill(key: str) -> None:
            try:
                await self._kill_in_time(key)
            except SandboxError as error:
                failures.append(str(error))

        async with task_group() as tasks:
            for key in sorted(self._admission.live):
                tasks.start_soon(kill, key)
        if left := sorted(self._admission.live):
            reasons = "; ".join(failures) or f"no answer within {KILL_PATIENCE_S:g} s"
            raise SandboxError(
                f"sandboxes {', '.join(left)} could not be killed ({reasons}); their leases will end them"
            )


class PooledSandbox:
    """One sandbox of a pool, from ``SandboxPool.sandbox``. ``made`` says how it is isolated and what creating it took."""

    def __init__(self, pool: SandboxPool, key: str, made: PoolCreated) -> None:
        self._pool = pool
        self.key = key
        self.made = made

    async def run(self, command: str, *, limit_s: float, key: str | None = None) -> RunResult:
        """As ``SandboxPool.run``. Give a ``key`` to have the command run once whoever asks again; without one it is new."""
        return await self._pool.run(self.key, RunRequest(key=key or uuid.uuid4().hex, command=command, limit_s=limit_s))

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """As ``SandboxPool.read_file``."""
        return await self._pool.read_file(self.key, path, max_bytes=max_bytes)

    async def seal(self, *, paths: tuple[str, ...] = ("/",)) -> bytes:
        """As ``SandboxPool.seal``."""
        return await self._pool.seal(self.key, paths=paths)
