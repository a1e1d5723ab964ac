"""Fingerprints compared by name, without torch: which operations give other bits.

Left to others: what a fingerprint is and how one is made (``t1kernels.fingerprint``).
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "operation "
"""Of the keys of single operations."""
COMBINED = "operations"
"""The key of one digest over all of them."""


def differences(recorded: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """The operations that give other bits here than where ``recorded`` was made, or exist on one side alone, by name."""
    names = {name for name in (*recorded, *here) if name.startswith(PREFIX)}
    return sorted(name.removeprefix(PREFIX) for name in names if recorded.get(name) != here.get(name))


def known(fingerprint: Mapping[str, str]) -> int:
    """How many operations it has."""
    return sum(name.startswith(PREFIX) for name in fingerprint)
