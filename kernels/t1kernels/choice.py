"""Which kernels a process uses: the compiled ones where they are, else those in torch."""

from __future__ import annotations

import functools

from t1kernels.interface import Kernels
from t1kernels.native import NativeKernels


@functools.cache
def default_kernels() -> Kernels:
    """The fastest implementation that this machine has."""
    return NativeKernels()
