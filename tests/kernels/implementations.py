"""The implementations under the contract, each by its name. One that cannot be had here is reported by name, not left out
in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from t1kernels.interface import Kernels
from t1kernels.native import NativeKernels, NativeUnavailable
from t1kernels.padded import PaddedKernels

MAKERS: dict[str, Callable[[], Kernels]] = {
    "native/avx2": lambda: NativeKernels("avx2"),
    "native/portable": lambda: NativeKernels("portable"),
    "padded": PaddedKernels,
}


def implementation(name: str) -> Kernels:
    try:
        return MAKERS[name]()
    except NativeUnavailable as error:
        pytest.skip(f"kernels {name} are not here: {error}")
