"""The numbers that tokens are drawn with: they belong to (seed, position), not to the batch. The draw itself is a kernel.

Shapes: B rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Uint64Array = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Uint64Array) -> Uint64Array:
    """The finaliser of splitmix64: a bijection in which every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds_B: Uint64Array, positions_B: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1 - 2^-52] for each (seed, position)."""
    mixed_B = _mix(_mix(seeds_B + _GOLDEN) + (positions_B.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (mixed_B >> np.uint64(12)).astype(np.float64) * 2.0**-52
