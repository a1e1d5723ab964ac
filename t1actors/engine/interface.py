"""What an engine is: token ids in, token ids out, with the record that training needs.

A request carries the whole stream of its sequence so far; the answer carries what the model added and, for every
predicting position that the caller has no row for yet, the experts that the forward chose there.

What every engine guarantees:
- one result comes from one version of the weights: ``load`` waits until no request is live, and later requests wait
  for it;
- for a stream of N ids after generation, ``routing_RLK`` holds rows [known_rows, N - 1): over the calls of a
  sequence the rows sum to N - 1, each position once (the last id predicts nothing and has none);
- ``logprobs`` are float32, of the sampled ids, under the distribution they were drawn from (at temperature 0 the
  draw is the argmax and the log-probs are those of temperature 1);
- the draw at a position depends on (seed, position) and the weights, never on what else was being generated.
A sequence's cache is an optimisation that no result shows: it may be lost at any time.

Shapes: R new routing rows, L mixture-of-experts layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from t1actors.events import VersionSpan

RoutingRows: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
"""Expert numbers (R, L, K): uint8 up to 256 experts."""


class EngineError(Exception):
    """An engine could not do what it was asked. Says which request, why, and what to do."""


class RequestRefused(EngineError):
    """The request itself is wrong (ids out of range, no room left, impossible ``known_rows``): retrying can't help."""


class SequenceBusy(EngineError):
    """Another request of the same sequence is live; wait for its result (two writers of one stream would fork it)."""


class EngineStopped(EngineError):
    """The engine is not running (any more); the request may be sent again to one that is."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One model call. ``sequence`` names the stream whose cache may be reused; ``ids`` is all of it so far; the caller
    holds routing rows for positions [0, known_rows). Greedy when ``temperature`` is 0."""

    request_id: str
    sequence: str
    ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_ids: tuple[int, ...]
    known_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """``finish`` is "stop" when the last sampled id is one of ``stop_ids`` (it is part of ``sampled_ids``), else
    "length": ``max_new_tokens``, or the engine's longest stream. ``versions`` cover ``sampled_ids``."""

    request_id: str
    sampled_ids: tuple[int, ...]
    logprobs: npt.NDArray[np.float32]
    routing_RLK: RoutingRows
    versions: tuple[VersionSpan, ...]
    finish: Literal["stop", "length"]
    entropy_mean: float
    queue_s: float
    prefill_s: float
    decode_s: float


class Engine(Protocol):
    """See the module for what every engine guarantees. Used from one event loop; any number of calls at once."""

    @property
    def name(self) -> str:
        """The replica's name, as in ``TurnSampled.replica``."""
        ...

    @property
    def version(self) -> str:
        """The content digest of the weights in use."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Requests are served while this is open. Leaving it ends live requests with ``EngineStopped``."""
        ...

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """The model's next ids. Cancelling the call abandons the request. Raises ``EngineError``."""
        ...

    async def load(
        self, version: str, weights: bytes | memoryview, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Wait until no request is live, then use ``weights`` (``models.checkpoint.weights_to_bytes``), which must
        have the digest ``version``; no cache survives. ``progress`` hears of bytes, done and total, from any thread.
        Raises ``models.checkpoint.CheckpointError``; then the old weights stay."""
        ...

    async def release(self, sequence: str) -> None:
        """Forget the sequence's cache. Unknown sequences are fine."""
        ...

    async def quiesced(self) -> None:
        """Returns once no request is live."""
        ...
