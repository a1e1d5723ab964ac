"""Sandboxes under admission: the object to embed.

    async with backend.running():
        pool = SandboxPool(backend, Admission(TokenBucket(100, 32), max_live=128))
        await pool.reattach()
        made = await pool.create(spec)
        result = await pool.run(spec.key, RunRequest(key="1", command="ls", limit_s=5))
        archive = await pool.seal(spec.key)
        await pool.kill(spec.key)

Guarantees: a slot is held exactly while its sandbox may exist, so a creation that failed or was cancelled gives it back
and so does a ``kill`` that succeeded. Nothing is remembered but the slots: after a crash, ``reattach``.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from t1actors.sandbox.admission import Admission
from t1actors.sandbox.interface import Created, RunRequest, RunResult, SandboxBackend, SandboxSpec


@dataclass(frozen=True)
class PoolCreated:
    created: Created
    token_wait_s: float
    slot_wait_s: float


class SandboxPool:
    def __init__(self, backend: SandboxBackend, admission: Admission) -> None:
        self._backend = backend
        self._admission = admission

    async def reattach(self) -> list[str]:
        """The keys of sandboxes that live already; each takes a slot. Call it first."""
        keys = await self._backend.list()
        for key in keys:
            self._admission.adopt(key)
        return keys

    async def create(self, spec: SandboxSpec, *, deadline_s: float | None = None) -> PoolCreated:
        """Wait for a slot and a token, then create within ``deadline_s``. Raises ``TimeoutError``, ``SandboxError``."""
        admitted = await self._admission.admit(spec.key)
        finished = False
        try:
            with anyio.fail_after(deadline_s):
                created = await self._backend.create(spec)
            finished = True
        finally:
            if not finished:  # the backend leaves nothing behind
                self._admission.release(spec.key)
        return PoolCreated(created, admitted.token_wait_s, admitted.slot_wait_s)

    async def run(self, sandbox: str, request: RunRequest) -> RunResult:
        return await self._backend.run(sandbox, request)

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes | None:
        return await self._backend.read_file(sandbox, path, max_bytes=max_bytes)

    async def seal(self, sandbox: str, *, paths: tuple[str, ...] = ("/",)) -> bytes:
        return await self._backend.seal(sandbox, paths=paths)

    async def renew(self, sandbox: str) -> None:
        await self._backend.renew(sandbox)

    async def kill(self, sandbox: str) -> None:
        await self._backend.kill(sandbox)
        self._admission.release(sandbox)
