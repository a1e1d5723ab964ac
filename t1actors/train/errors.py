"""What can go wrong in training; every message names the trial or tensor and what to do."""

from __future__ import annotations


class TrainError(Exception):
    """Base of this folder's errors."""


class BatchError(TrainError):
    """A record that cannot be trained on: names the trial and chunk."""


class StateError(TrainError):
    """A trainer state that does not decode, or does not fit its network."""


class NonFiniteError(TrainError):
    """A loss or gradient became infinite or NaN: names the update and the tensor."""


class RanksError(TrainError):
    """One of the processes of a step died, failed or is stuck: names its rank. Nothing was updated; the step can be
    taken again."""
