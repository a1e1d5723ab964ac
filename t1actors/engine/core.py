"""The engine without concurrency: jobs in, one slab a step, finished jobs out.

Continuous batching: every step packs one token of each decoding sequence and, up to a budget, chunks of waiting
prompts into one slab. A sequence keeps its slot (keys, values, routing rows, ids) between turns; a new call reuses
the longest common prefix. When all slots are taken the least recently used idle one is given away, and its sequence
is prefilled again.

Guarantees: see ``engine.interface``; what is reused was computed from the same ids by the same weights. Not thread
safe: one caller at a time (``torch_engine`` sees to that).

Shapes: S slots, T positions of a slot, N slab rows, B sequences, L mixture-of-experts layers, K experts per token.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch

from t1actors.engine.cache import Chunk, KeyValueCache, Slab
from t1actors.engine.interface import GenerateRequest, GenerateResult, RoutingRows
from t1actors.engine.sampling import uniforms
from t1actors.events import VersionSpan
from t1actors.models.policy import Policy
from t1actors.models.routing import routing_dtype


@dataclass(eq=False)
class Job:
    """A request on its way. ``length`` ids are in the stream, of which ``cached`` have been through the forward. Set
    ``abandoned`` to stop it: the next step drops it."""

    request: GenerateRequest
    submitted_s: float
    slot: int = -1
    length: int = 0
    cached: int = 0
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    sampled: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    entropy_sum: float = 0.0
    abandoned: bool = False
    result: GenerateResult | None = None


@dataclass
class _Slot:
    """What a slot holds: the first ``cached`` ids of a sequence. ``busy`` while a job runs in it."""

    sequence: str = ""
    cached: int = 0
    busy: bool = False
    used_at: int = 0


class EngineCore:
    """See the module. ``max_ids`` is the longest stream, ``prefill_ids`` the budget of prompt ids in a slab."""

    def __init__(
        self,
        policy: Policy,
        *,
        max_live_sequences: int,
        max_ids: int,
        prefill_ids: int = 512,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        shape = policy.shape
        self.policy = policy
        self.max_ids = max_ids
        self.version = policy.digest()
        self._prefill_ids = prefill_ids
        self._clock_s = clock_s
        self._cache = KeyValueCache(shape, slots=max_live_sequences, positions=max_ids)
        self._ids_ST = np.zeros((max_live_sequences, max_ids), dtype=np.int64)
        self._routing = np.zeros(
            (max_live_sequences * max_ids, shape.routed_layers, shape.experts_per_token),
            dtype=routing_dtype(shape.experts),
        )
        self._slots = [_Slot() for _ in range(max_live_sequences)]
        self._slot_of: dict[str, int] = {}
        self._waiting: deque[Job] = deque()
        self._live: list[Job] = []
        self._ticks = 0

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job whose request was checked before. One live job a sequence."""
        self._waiting.append(job)

    def release(self, sequence: str) -> None:
        """Forget an idle sequence's cache."""
        index = self._slot_of.get(sequence)
        if index is not None and not self._slots[index].busy:
            del self._slot_of[sequence]
            self._slots[index] = _Slot()

    def load(self, version: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Use other weights; every cache was the old ones', so none survives. Raises ``CheckpointError``."""
        self._drop_abandoned()
        assert not self.has_work, "weights are loaded between requests only"
        self.policy.load_weights(weights)
        self.version = version
        self._slot_of.clear()
        self._slots = [_Slot() for _ in self._slots]

    def step(self) -> list[Job]:
        """One slab: returns the jobs that it finished, results set."""
        self._drop_abandoned()
        self._admit()
        jobs = {job.slot: job for job in self._live}
        chunks = self._chunks()
        if not chunks:
            return []
        slab = Slab(self._cache, chunks)
        ids_N = self._ids_ST[slab.slots_N, slab.positions_N]
        in_slab = [jobs[chunk.slot] for chunk in slab.chunks]
        for job, chunk in zip(in_slab, slab.chunks, strict=True):
            job.cached = chunk.start + chunk.count
        drawing = [job for job in in_slab if job.cached == job.length]
        rows_B = np.array([r for r, j in zip(slab.last_rows, in_slab, strict=True) if j.cached == j.length], np.int64)
        with torch.inference_mode():
            forwarded = self.policy.forward(torch.from_numpy(ids_N), torch.from_numpy(slab.positions_N), slab)
            self._routing[slab.flat_N] = forwarded.routing_NLK.numpy()
            if not drawing:
                return []
            hidden_BH = forwarded.hidden_NH
            if len(rows_B) != len(ids_N):
                hidden_BH = hidden_BH.index_select(0, torch.from_numpy(rows_B))
            positions_B = np.array([job.length for job in drawing], dtype=np.int64)
            seeds_B = np.array([job.request.seed for job in drawing], dtype=np.uint64)
            temperatures_B = np.array([job.request.temperature for job in drawing], dtype=np.float32)
            tokens_B, logprobs_B, entropies_B = self.policy.kernels.draw(
                self.policy.logits(hidden_BH),
                torch.from_numpy(temperatures_B),
                torch.from_numpy(uniforms(seeds_B, positions_B)),
            )
        slots_B = np.array([job.slot for job in drawing], dtype=np.int64)
        self._ids_ST[slots_B, positions_B] = tokens_B.numpy()
        return self._append(drawing, tokens_B.tolist(), logprobs_B.tolist(), entropies_B.tolist())

    def _append(self, jobs: list[Job], tokens: list[int], logprobs: list[float], entropies: list[float]) -> list[Job]:
        finished: list[Job] = []
        now_s = self._clock_s()
        for job, token, logprob, entropy in zip(jobs, tokens, logprobs, entropies, strict=True):
            if not job.sampled:
                job.first_token_s = now_s
            job.sampled.append(token)
            job.logprobs.append(logprob)
            job.entropy_sum += entropy
            job.length += 1
            full = len(job.sampled) == job.request.max_new_tokens or job.length == self.max_ids
            if full or token in job.request.stop_ids:
                job.result = self._result(job, now_s)
                finished.append(job)
        if finished:
            self._live = [job for job in self._live if job.result is None]
            for job in finished:
                self._leave(job)
        return finished

    def _result(self, job: Job, now_s: float) -> GenerateResult:
        request = job.request
        base = job.slot * self.max_ids
        return GenerateResult(
            request_id=request.request_id,
            sampled_ids=tuple(job.sampled),
            logprobs=np.array(job.logprobs, dtype=np.float32),
            routing_RLK=cast("RoutingRows", self._routing[base + request.known_rows : base + job.length - 1].copy()),
            versions=(VersionSpan(version=self.version, start=0, end=len(job.sampled)),),
            finish="stop" if job.sampled[-1] in request.stop_ids else "length",
            entropy_mean=job.entropy_sum / len(job.sampled),
            queue_s=job.admitted_s - job.submitted_s,
            prefill_s=job.first_token_s - job.admitted_s,
            decode_s=now_s - job.first_token_s,
        )

    # --- which tokens go into the next slab ---------------------------------------------------------------------------

    def _chunks(self) -> list[Chunk]:
        """All decoding sequences, then prompts in order of arrival while the budget lasts."""
        budget = self._prefill_ids
        chunks: list[Chunk] = []
        for job in self._live:
            pending = job.length - job.cached
            if pending > 1:
                pending = min(pending, budget)
                budget -= pending
            if pending > 0:
                chunks.append(Chunk(job.slot, job.cached, pending))
        return chunks

    # --- slots --------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            index = self._slot_for(job.request.sequence)
            if index is None:
                return
            self._waiting.popleft()
            self._enter(job, index)

    def _slot_for(self, sequence: str) -> int | None:
        """The sequence's own slot, else a free one, else the idle one that was left longest ago."""
        own = self._slot_of.get(sequence)
        if own is not None:
            return own
        idle = [i for i, slot in enumerate(self._slots) if not slot.busy]
        if not idle:
            return None
        return min(idle, key=lambda i: (self._slots[i].sequence != "", self._slots[i].used_at))

    def _enter(self, job: Job, index: int) -> None:
        slot = self._slots[index]
        assert not slot.busy, "one live request a sequence"
        ids = np.array(job.request.ids, dtype=np.int64)
        if slot.sequence == job.request.sequence:
            reusable = min(slot.cached, len(ids) - 1)  # the last id always runs: its logits are wanted
            differs = np.flatnonzero(self._ids_ST[index, :reusable] != ids[:reusable])
            job.cached = int(differs[0]) if len(differs) else reusable
        else:
            self._slot_of.pop(slot.sequence, None)
            self._slot_of[job.request.sequence] = index
            slot.sequence = job.request.sequence
        slot.busy = True
        self._ids_ST[index, : len(ids)] = ids
        job.slot, job.length = index, len(ids)
        job.admitted_s = self._clock_s()
        self._live.append(job)

    def _leave(self, job: Job) -> None:
        self._ticks += 1
        self._slots[job.slot] = _Slot(job.request.sequence, job.cached, busy=False, used_at=self._ticks)

    def _drop_abandoned(self) -> None:
        for job in self._live:
            if job.abandoned:
                self._leave(job)
        self._live = [job for job in self._live if not job.abandoned]
        self._waiting = deque(job for job in self._waiting if not job.abandoned)
