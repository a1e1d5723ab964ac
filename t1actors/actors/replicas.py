"""Which replica of the sampler samples a trial.

Pure. The answer is a function of the trial's index and of what the event that opened the trial states of reclaimed replicas,
so that all who ask come to the same one, whenever each of them hears that a replica was given up.
"""

from __future__ import annotations

from collections.abc import Collection


def replica_names(count: int) -> tuple[str, ...]:
    """``sampler``, ``sampler1``, ... of so many."""
    return tuple("sampler" if n == 0 else f"sampler{n}" for n in range(count))


def owner(index: int, count: int, reclaimed: Collection[str]) -> str:
    """The replica for the trial at ``index``: the one whose turn it is, or the next that is not ``reclaimed``. Raises
    ``ValueError``: all are."""
    names = replica_names(count)
    following = (names[(index + n) % count] for n in range(count))
    found = next((name for name in following if name not in reclaimed), None)
    if found is None:
        raise ValueError(f"all {count} replicas are reclaimed: nobody can sample a trial")
    return found
