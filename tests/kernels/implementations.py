"""The implementations under the contract, each by its name. One that cannot be had here is reported by name, not left out
in silence. The two instruction sets of the compiled one are held to the same bits (test_native.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from t1kernels.interface import Kernels
from t1kernels.native import NativeKernels, NativeUnavailable
from t1kernels.padded import PaddedKernels
from t1kernels.triton_kernels import TritonUnavailable, triton_kernels
from t1kernels.triton_kernels.on_device import OnDevice

MAKERS: dict[str, Callable[[], Kernels]] = {
    "native": NativeKernels,
    "padded": PaddedKernels,
    "triton": lambda: cast(Kernels, OnDevice(triton_kernels())),
}


def implementation(name: str) -> Kernels:
    try:
        return MAKERS[name]()
    except (NativeUnavailable, TritonUnavailable) as error:
        pytest.skip(f"kernels {name} are not here: {error}")


def fastest() -> Kernels:
    """The first that can be had, for tests of what any implementation serves for."""
    try:
        return NativeKernels()
    except NativeUnavailable:
        return PaddedKernels()
