"""The losses of a step's updates: one number an update, and 8 bytes a trial to find where two runs part.

The normaliser N of an update is the number of sampled tokens of its minibatch, fixed before its first forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import blake3
import numpy as np
import numpy.typing as npt
import torch

from t1actors.train.batch import Batch
from t1actors.train.digests import short


class UpdateLosses:
    """``begin`` an update, ``record`` its micro-batches' token losses, ``finish`` it."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.loss_T = np.zeros(batch.sampled, dtype=np.float32)
        """The loss of each token in the last update that trained it."""
        self._places: Sequence[int] = ()
        self.totals: list[float] = []
        """sum m l / N of every finished update, float64."""
        self.trial_digests: list[bytes] = []
        """Per finished update: the trials of its minibatch in index order."""

    def begin(self, places: Sequence[int]) -> int:
        """N of the update over the trials at ``places``."""
        self._places = places
        return sum(self._batch.trials[place].sampled for place in places)

    def record(self, tokens_n: npt.NDArray[np.int64], loss_n: torch.Tensor) -> None:
        """Note the losses of a micro-batch's tokens, at their places among the batch's T."""
        self.loss_T[tokens_n] = loss_n.detach().numpy()

    def of(self, tokens_n: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The noted losses of these tokens, a copy."""
        return self.loss_T[tokens_n]

    def finish(self) -> None:
        """End the update: its total and its trials' digests are added."""
        losses = self.loss_T[self._batch.tokens_of(self._places)]
        self.totals.append(float(losses.sum(dtype=np.float64)) / len(losses))
        trials = [self._batch.trials[place] for place in self._places]
        parts = (self.loss_T[t.first : t.first + t.sampled] for t in trials)
        self.trial_digests.append(short(blake3.blake3(part.tobytes()).digest() for part in parts))
