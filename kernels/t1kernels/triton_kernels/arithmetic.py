"""Functions on the device that several kernels share: sums of a written order, the grid of exact sums, largest magnitudes.

Every kernel here is compiled without contraction of ``a * b + c`` (``UNFUSED``): what an expression rounds to must not
depend on the kernel that it stands in. Reductions of Triton's own (``tl.sum``) have an order that the compiler chooses for
each compiled kernel: it is the same for every row, and nothing more is asked of it; where two kernels must agree, ``folded``
is used.
"""

import triton
import triton.language as tl

UNFUSED = {"enable_fp_fusion": False}
"""A launch option of every kernel."""
FLOAT32 = tl.constexpr("tf32x3")
"""How float32 is multiplied: three products on tensor cores, about as exact as one of float32. ``ieee`` has no tensor cores
and keeps whole operands in registers, which attention has no room for."""


@triton.jit
def folded(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    """The sum of each row of (ROWS, WIDTH): its upper half is added to the lower one, STEPS = log2 WIDTH times."""
    for step in tl.static_range(STEPS):
        pairs = tl.permute(tl.reshape(x, (ROWS, 2, WIDTH // (2 << step))), (0, 2, 1))
        lower, upper = tl.split(pairs)
        x = lower + upper
    return tl.reshape(x, (ROWS,))


@triton.jit
def on_grid(partial, BIG: tl.constexpr):
    """A float32 partial on the grid of an exact sum, in float64 (``t1kernels.exact``)."""
    return (partial.to(tl.float64) + BIG) - BIG


@triton.jit
def magnitude(partial):
    """|partial|, and infinity for what is not a number."""
    return tl.where(partial == partial, tl.abs(partial), float("inf"))


@triton.jit
def note_largest(largest, magnitudes):
    """Raise the cell ``largest`` to the largest of these, which are not negative: their bits rise as they do."""
    tl.atomic_max(largest, tl.max(magnitudes).to(tl.int32, bitcast=True))


@triton.jit
def rounded(x, like):
    """x in float32, after a rounding to the elements that the pointer ``like`` points at."""
    return x.to(like.dtype.element_ty).to(tl.float32)
