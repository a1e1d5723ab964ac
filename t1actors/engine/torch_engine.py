"""The built-in engine: ``engine.core`` behind the ``Engine`` protocol, its forward in a worker thread.

Guarantees: the event loop is never blocked by a forward; everything that touches the core runs in one worker thread
at a time; ``load`` starts when no request is live and later requests wait for it; leaving ``running`` answers every
live request with ``EngineStopped``. Written on anyio, used under trio and asyncio.

Torch is told to use one thread in this process: at these sizes a second one makes decode ten times slower, and one
thread is what makes results reproducible.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import torch
from anyio import to_thread
from t1kernels.interface import Kernels

from t1actors.engine.core import EngineCore, Job
from t1actors.engine.interface import (
    EngineError,
    EngineStopped,
    GenerateRequest,
    GenerateResult,
    RequestRefused,
    SequenceBusy,
)
from t1actors.models.checkpoint import weights_from_bytes
from t1actors.models.policy import Policy
from t1actors.models.pretrained import load_policy
from t1actors.nursery import apart, task_group

T = TypeVar("T")


@dataclass(eq=False)
class _Call(Job):
    """A job that ``generate`` waits for."""

    answered: anyio.Event = field(default_factory=anyio.Event)


class TorchEngine:
    """One replica on the CPU. ``source`` is a Hugging Face folder, or a policy (with its own dtype and kernels) that this
    engine then owns. ``kernels``: those of ``t1kernels.choice.choose`` by default."""

    def __init__(
        self,
        source: Path | Policy,
        *,
        name: str = "sampler",
        dtype: Literal["float32", "bfloat16"] = "float32",
        kernels: Kernels | None = None,
        max_live_sequences: int = 128,
        max_ids: int = 640,
    ) -> None:
        policy = source if isinstance(source, Policy) else load_policy(source, dtype=dtype, kernels=kernels)
        if max_ids > policy.shape.max_positions:
            raise EngineError(
                f"engine {name}: max_ids = {max_ids}, but the model has {policy.shape.max_positions} positions; "
                "lower rollout.max_ids"
            )
        self._name = name
        self._core = EngineCore(policy, max_live_sequences=max_live_sequences, max_ids=max_ids)
        self._vocabulary = policy.shape.vocabulary
        self._inbox: list[_Call | str] = []
        """Requests to submit and sequences to release, for the worker thread."""
        self._live: dict[str, _Call] = {}
        self._open = False
        self._wake = anyio.Event()
        self._idle = anyio.Event()
        self._gate: anyio.Event | None = None
        """Set and held while weights are being loaded: requests wait for it."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> str:
        return self._core.version

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        assert not self._open, "an engine runs once at a time"
        torch.set_num_threads(1)
        self._limiter = anyio.CapacityLimiter(1)
        self._loading = anyio.Lock()
        self._open = True
        try:
            async with task_group() as tasks:
                tasks.start_soon(self._serve)
                try:
                    yield
                finally:
                    self._open = False  # the worker looks at it between slabs
                tasks.cancel_scope.cancel()
        finally:
            self._open = False
            for call in self._live.values():
                call.answered.set()

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        self._check(request)
        while self._gate is not None:
            await self._gate.wait()
        if not self._open:
            raise EngineStopped(f"engine {self._name} is not running; request {request.request_id} was not started")
        if request.sequence in self._live:
            raise SequenceBusy(
                f"request {request.request_id}: sequence {request.sequence} has request "
                f"{self._live[request.sequence].request.request_id} live"
            )
        call = _Call(request, submitted_s=time.perf_counter())
        self._live[request.sequence] = call
        self._post(call)
        try:
            await call.answered.wait()
        finally:
            call.abandoned = True
            del self._live[request.sequence]
            if not self._live:
                self._idle.set()
        if call.result is None:
            raise EngineStopped(f"engine {self._name} stopped before request {request.request_id} was answered")
        return call.result

    async def load(
        self, version: str, weights: bytes | memoryview, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        if not self._open:
            raise EngineStopped(f"engine {self._name} is not running; weights {version[:16]}… were not loaded")
        async with self._loading:
            self._gate = anyio.Event()
            try:
                await self.quiesced()
                # Apart: asyncio's cancel would leave the thread at work on the core beside the next one.
                await apart(
                    lambda: self._in_thread(
                        lambda: self._core.load(
                            version, weights_from_bytes(weights, version=version, progress=progress)
                        )
                    )
                )
            finally:
                self._gate.set()
                self._gate = None

    async def release(self, sequence: str) -> None:
        self._post(sequence)

    async def quiesced(self) -> None:
        while self._live:
            self._idle = anyio.Event()
            await self._idle.wait()

    # --- the worker's side --------------------------------------------------------------------------------------------

    def _post(self, item: _Call | str) -> None:
        self._inbox.append(item)
        self._wake.set()

    async def _serve(self) -> None:
        while True:
            if not self._inbox and not self._core.has_work:
                self._wake = anyio.Event()
                await self._wake.wait()
            inbox, self._inbox = self._inbox, []
            for call in await self._in_thread(lambda items=inbox: self._turn(items)):
                call.answered.set()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await to_thread.run_sync(call, limiter=self._limiter)

    def _turn(self, inbox: list[_Call | str]) -> list[_Call]:
        """Take in what arrived, then run slabs until one answers a request or there is news; returns what was answered.

        Going back to the event loop after every slab would cost a fifth of a millisecond each time: a fifth of a step of one
        sequence, a tenth of a step of 64."""
        for item in inbox:
            if isinstance(item, str):
                self._core.release(item)
            else:
                self._core.submit(item)
        while True:
            answered = [job for job in self._core.step() if isinstance(job, _Call)]
            if answered or self._inbox or not self._core.has_work or not self._open:
                return answered

    def _check(self, request: GenerateRequest) -> None:
        """Raise ``RequestRefused`` for what no retry can mend."""

        def refuse(why: str) -> RequestRefused:
            return RequestRefused(f"request {request.request_id}, sequence {request.sequence}: {why}")

        if not request.ids:
            raise refuse("no ids: a stream starts with at least one")
        if not (min(request.ids) >= 0 and max(request.ids) < self._vocabulary):
            raise refuse(f"ids outside the model's vocabulary of {self._vocabulary}")
        if request.max_new_tokens < 1:
            raise refuse(f"max_new_tokens = {request.max_new_tokens}: at least 1")
        if len(request.ids) >= self._core.max_ids:
            raise refuse(f"{len(request.ids)} ids leave no room below max_ids = {self._core.max_ids}; end the episode")
        if not (math.isfinite(request.temperature) and request.temperature >= 0):
            raise refuse(f"temperature = {request.temperature}: 0 (greedy) or above")
        if not 0 <= request.known_rows < len(request.ids):
            raise refuse(
                f"known_rows = {request.known_rows}: {len(request.ids)} ids have at most {len(request.ids) - 1}"
            )
        if not 0 <= request.seed < 2**64:
            raise refuse(f"seed = {request.seed}: an unsigned 64-bit number")
