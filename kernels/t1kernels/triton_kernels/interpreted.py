"""Triton's interpreter with products and casts that a contract can be tested on: imported where kernels are interpreted.

The interpreter multiplies blocks by numpy's matmul, whose library gives a row other bits at another place of a block, and
which takes the bits of bfloat16 for integers; and it cuts digits off where a cast to bfloat16 rounds. Here products are
summed in float64, whose roundings float32 does not show, and the cast rounds to the nearest, of two to the even one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def _float64(handle: Any) -> np.ndarray:
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return handle.data.astype(np.float64)


def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
    """Instead of the interpreter's."""
    return TensorHandle((_float64(a) @ _float64(b) + d.data).astype(d.data.dtype), d.dtype.scalar)


_cast = InterpreterBuilder.cast_impl


def cast_impl(self: Any, source: Any, to: Any) -> Any:
    """Instead of the interpreter's."""
    if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
        return _cast(self, source, to)
    bits = np.ascontiguousarray(source.data).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return TensorHandle(np.where(np.isnan(source.data), 0x7FC0, rounded).astype(np.uint16), to.scalar)


InterpreterBuilder.create_dot = create_dot
InterpreterBuilder.cast_impl = cast_impl
