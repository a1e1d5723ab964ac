"""One step over several processes: who computes which trials, and how what they found becomes whole.

A step is the same on every rank: each holds the whole state and batch, runs the forward and backward passes of its
share of a minibatch's trials, and after an exchange makes the whole update. What is exchanged is exact, so that a
step's bits do not depend on the number of ranks, and one process replays what several trained:

- gradients are sums on a grid (``models.gradients``), which an ordinary float64 all-reduce adds without rounding, in
  whatever order;
- bounds of those sums: the largest partial by maximum, the number of partials by sum, so that every rank refuses the
  same update;
- a token's numbers travel as bits: integers added to zeros, so that NaN and minus zero arrive as they were.

Left to others: starting processes and telling them of a step (``crew``, ``worker``).

Shapes: T sampled tokens of the batch, n of a minibatch, C streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from t1actors.models.gradients import Gradients
from t1actors.train.batch import Batch
from t1actors.train.errors import RanksError

ALONE_FROM = 1 << 17
"""Sums of this many elements are exchanged where they lie; smaller ones together, since each exchange takes
milliseconds."""

_distributed: Any = torch.distributed
"""As the library is: its stubs know a part of it."""

StreamT = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]

MEETING_S = 300.0
"""Every rank has loaded what it needs before it is sent to the meeting."""


class Ranks(Protocol):
    """The processes that take a step together, seen from one of them. Both exchanges are called by all, in the same
    order."""

    @property
    def rank(self) -> int:
        """This process, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many processes share a step."""
        ...

    def merge(self, gradients: Gradients) -> None:
        """Make the sums of the ranks' shares of an update the sums of the whole update. Raises ``RanksError``."""
        ...

    def share(self, streams: Sequence[StreamT], mine: Sequence[Tokens], whole_n: Tokens) -> None:
        """Make each stream whole at the tokens ``whole_n`` (ascending), of which this rank computed ``mine``, and each
        token one rank only. Raises ``RanksError``."""
        ...


class Alone:
    """One process computes the step."""

    rank = 0
    size = 1

    def merge(self, gradients: Gradients) -> None:
        """Whole already."""

    def share(self, streams: Sequence[StreamT], mine: Sequence[Tokens], whole_n: Tokens) -> None:
        """Whole already."""


ALONE = Alone()


class GlooRanks:
    """Ranks over gloo and this machine's loopback, met at the file ``store``.

    A rank that dies closes its connections, so that the others' exchange fails at once; ``timeout_s`` is for one that
    is stuck, and must exceed the longest share of an update.
    """

    def __init__(self, store: Path, rank: int, size: int, *, timeout_s: float) -> None:
        """Returns when all ``size`` ranks are there. Raises ``RanksError``."""
        self.rank = rank
        self.size = size
        # A group of its own, not torch's one default group: a process may hold several, and an embedding program its own.
        gloo = _distributed.ProcessGroupGloo
        options = gloo._Options()  # the only way to name the interface
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_s)
        options._threads = 1
        with self._exchanging("the meeting"):
            meeting = _distributed.FileStore(str(store), size)
            meeting.set_timeout(timedelta(seconds=MEETING_S))
            self._group = gloo(meeting, rank, size, options)

    def merge(self, gradients: Gradients) -> None:
        """See ``Ranks``."""
        sums = list(gradients.sums.values())
        small = [total.sum for total in sums if total.sum.numel() < ALONE_FROM]
        large = [total.sum for total in sums if total.sum.numel() >= ALONE_FROM]
        # Counts are exact in float64 and ride along.
        partials = torch.tensor([total.partials for total in sums], dtype=torch.float64)
        largest = torch.tensor([total.largest for total in sums], dtype=torch.float64)
        flat = torch.cat([partials, *(tensor.reshape(-1) for tensor in small)])
        with self._exchanging("the sum of the gradients"):
            self._reduce([flat, *large], _distributed.ReduceOp.SUM)
            self._reduce([largest], _distributed.ReduceOp.MAX)
        partials, *parts = flat.split([len(sums), *(tensor.numel() for tensor in small)])
        for tensor, part in zip(small, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        for total, most, count in zip(sums, largest.tolist(), partials.tolist(), strict=True):
            total.note(most, int(count) - total.partials)

    def share(self, streams: Sequence[StreamT], mine: Sequence[Tokens], whole_n: Tokens) -> None:
        """See ``Ranks``."""
        bits_Cn = np.zeros((len(streams), len(whole_n)), dtype=np.int32)
        for tokens_m in mine:
            places_m = np.searchsorted(whole_n, tokens_m)
            for bits_n, stream_T in zip(bits_Cn, streams, strict=True):
                bits_n[places_m] = stream_T[tokens_m].view(np.int32)
        with self._exchanging("the tokens' numbers"):
            self._reduce([torch.from_numpy(bits_Cn)], _distributed.ReduceOp.SUM)
        for bits_n, stream_T in zip(bits_Cn, streams, strict=True):
            stream_T[whole_n] = bits_n.view(np.float32)

    def close(self) -> None:
        """Cut the connections: the others' exchanges fail from now on."""
        self._group.abort()

    def _reduce(self, tensors: Sequence[torch.Tensor], operation: Any) -> None:
        """In place; all are under way at once."""
        options = _distributed.AllreduceOptions()
        options.reduceOp = operation
        for work in [self._group.allreduce([tensor], options) for tensor in tensors]:
            work.wait()

    @contextlib.contextmanager
    def _exchanging(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RanksError(f"rank {self.rank} of {self.size}: {what} failed: {error}") from error


def divided(batch: Batch, places: Sequence[int], ranks: Ranks) -> tuple[int, ...]:
    """The trials among ``places`` that this rank computes, in their order.

    The longest trial first, each to the rank that has the fewest ids so far: shares are near equal, and no rank is
    without as long as there are trials enough.
    """
    if ranks.size == 1:
        return tuple(places)
    held = [0] * ranks.size
    owner: dict[int, int] = {}
    for place in sorted(places, key=lambda place: (-batch.trials[place].ids, place)):
        rank = held.index(min(held))
        owner[place] = rank
        held[rank] += batch.trials[place].ids
    return tuple(place for place in places if owner[place] == ranks.rank)
