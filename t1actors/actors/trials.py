"""What a trial is called, and the seed that follows from its name. Pure."""

from __future__ import annotations

import re

import blake3

_NAME = re.compile(r"s([0-9]+)\.t[0-9]+")


def trial_id(step: int, index: int) -> str:
    """The trial's name in the run."""
    return f"s{step}.t{index}"


def step_of_trial(trial: str) -> int:
    """The step in its name. Raises ``ValueError``: no trial is called that."""
    found = _NAME.fullmatch(trial)
    if found is None:
        raise ValueError(f"no trial is called {trial!r}")
    return int(found[1])


def trial_seed(run_seed: int, trial: str) -> int:
    """H(run, trial): 63 bits, so that it survives any signed integer."""
    return int.from_bytes(blake3.blake3(f"{run_seed}/{trial}".encode()).digest(8), "little") >> 1
