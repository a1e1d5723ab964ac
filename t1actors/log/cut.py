"""The greatest consistent cut: how much of journals that end unevenly can stand.

Journals end unevenly when a machine is lost before the kernel wrote everything (``durability="process"``), when a part of
one is damaged, or when they were copied while they grew. A cut is consistent when every frame in it rests only on frames
that are in it, too; of all such cuts one holds the others, and this is it.

Pure. What happens to the rest is left to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Mark(NamedTuple):
    """Of a frame: the sequence behind its events, and what it rests on (a frame's vector only grows along its journal)."""

    next_sequence: int
    vector: Mapping[str, int]


def greatest_cut(journals: Mapping[str, Sequence[Mark]], *, begins: Mapping[str, int] | None = None) -> dict[str, int]:
    """How many of each journal's frames, the first ones, are in it. A journal that is named and not given is empty.
    ``begins``: the first sequence of journals whose beginning was deleted; that was there."""
    kept = {name: len(marks) for name, marks in journals.items()}

    def stands(name: str, mark: Mark) -> bool:
        return all(sequence < behind(other) for other, sequence in mark.vector.items() if other != name)

    def behind(name: str) -> int:
        count = kept.get(name, 0)
        return journals[name][count - 1].next_sequence if count else (begins or {}).get(name, 0)

    shrunk = True
    while shrunk:
        shrunk = False
        for name, marks in journals.items():
            while kept[name] and not stands(name, marks[kept[name] - 1]):
                kept[name] -= 1
                shrunk = True
    return kept
