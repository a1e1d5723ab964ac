"""A pytest plugin (``-p tests.kernels.interpreted``): Triton's interpreter with products that a contract can be tested on.

The interpreter multiplies blocks by numpy's matmul, whose library gives a row other bits at another place of a block, and
which takes the bits of bfloat16 for integers. Here products are summed in float64, whose roundings float32 does not show.
What stays wrong: the interpreter cuts digits off where a cast to bfloat16 should round.
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


InterpreterBuilder.create_dot = create_dot
