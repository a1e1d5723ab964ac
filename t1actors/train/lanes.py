"""Which state a step begins from: lanes of updates that follow each other. Pure, and free of torch.

Warm-up (T1 section 6) trains a policy of its own, of which nothing is kept: a later segment starts from the initial policy
with a fresh optimizer. Of the critic only the weights are kept. Evaluations train nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from t1actors.events import Purpose


def actor_lane(purpose: Purpose) -> str | None:
    """Updates of one lane follow each other; every lane begins at the initial policy with a fresh optimizer. None: the
    purpose does not train the actor."""
    return purpose if purpose in ("warmup", "train") else None


def trains_critic(purpose: Purpose) -> bool:
    """Whether a step of this purpose updates the critic."""
    return purpose in ("warmup", "recalibrate", "train")


def critic_drops_moments(previous: Purpose | None, purpose: Purpose) -> bool:
    """``previous``: the purpose of the last step that trained the critic, None when none did."""
    return previous == "warmup" and purpose != "warmup"


def last_before(step: int, candidates: Iterable[int]) -> int | None:
    """The greatest of ``candidates`` below ``step``."""
    return max((c for c in candidates if c < step), default=None)
