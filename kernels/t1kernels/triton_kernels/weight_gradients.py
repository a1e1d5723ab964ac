"""Gradients of weights: partials of grains, put on the grid and added exactly (``t1kernels.exact``).

Bound: FLOPs (2 N K O); the grid costs three float64 operations for each 64 rows of an output, and the sum is read and
written once (16 bytes an output). A partial is a function of its grain's rows in their order: blocks of rows from the
grain's first on, in float32. Partials are added in float64 where every sum is exact, so it changes no bit how grains are
dealt to programs, nor in which order these add their shares to the sum (float64 atomics).

Shapes: see ``interface``; C chunks (at most a block of rows of one grain), J jobs (whole grains of one weight).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from t1kernels.exact import ExactSum
from t1kernels.interface import Grains
from t1kernels.triton_kernels.arithmetic import FLOAT32, UNFUSED, magnitude, note_largest, on_grid


@dataclass(frozen=True)
class GradientBlocks:
    """What a program computes: (outputs, inputs) of a weight, over blocks of ``rows``."""

    outputs: int
    inputs: int
    rows: int
    warps: int
    stages: int


GRADIENT_BLOCKS = {
    torch.bfloat16: GradientBlocks(outputs=64, inputs=64, rows=64, warps=4, stages=3),
    torch.float32: GradientBlocks(outputs=64, inputs=64, rows=32, warps=4, stages=2),
}
PROGRAMS = 1024
"""About as many programs are started, if the rows allow: what fills a device. Changes no bit."""


# Tables may begin at any address: a kernel compiled for each of them would be the same but for that.
@triton.jit(do_not_specialize=["chunk_first", "chunk_end", "chunk_last", "job_weight", "job_first", "job_end"])
def weight_gradient_kernel(
    dy, x, chunk_first, chunk_end, chunk_last, job_weight, job_first, job_end, total, largest, outputs, inputs,
    BIG: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One tile of one job's weight gradient: each grain summed in float32, then added on the grid."""
    across = tl.cdiv(inputs, INPUTS)
    output = tl.program_id(0) // across * OUTPUTS + tl.arange(0, OUTPUTS)
    input_ = tl.program_id(0) % across * INPUTS + tl.arange(0, INPUTS)
    output_here, input_here = output < outputs, input_ < inputs
    job = tl.program_id(1)
    share = tl.zeros((OUTPUTS, INPUTS), tl.float64)
    partial = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    top = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    for chunk in range(tl.load(job_first + job), tl.load(job_end + job)):
        row = tl.load(chunk_first + chunk) + tl.arange(0, ROWS)
        row_here = row < tl.load(chunk_end + chunk)
        a = tl.load(
            dy + row[None, :] * outputs + output[:, None], mask=row_here[None, :] & output_here[:, None], other=0.0
        )
        b = tl.load(
            x + row[:, None] * inputs + input_[None, :], mask=row_here[:, None] & input_here[None, :], other=0.0
        )
        partial = tl.dot(a, b, partial, input_precision=FLOAT32)
        if tl.load(chunk_last + chunk) != 0:
            top = tl.maximum(top, magnitude(partial))
            share += on_grid(partial, BIG)
            partial = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    note_largest(largest, top)
    weight = tl.load(job_weight + job)
    at = total + (weight * outputs + output[:, None]) * inputs + input_[None, :]
    tl.atomic_add(at, share, mask=output_here[:, None] & input_here[None, :], sem="relaxed")


@triton.jit(do_not_specialize=["elements"])
def embedding_gradient_kernel(dx, ids, total, largest, elements, width, BIG: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of the embedding's gradient, each on the grid, added exactly."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < elements
    value = tl.load(dx + at, mask=here, other=0.0).to(tl.float32)
    note_largest(largest, magnitude(value))
    word = tl.load(ids + at // width, mask=here, other=0)
    tl.atomic_add(total + word * width + at % width, on_grid(value, BIG), mask=here, sem="relaxed")


@dataclass(frozen=True)
class _Jobs:
    """Grains cut into chunks of rows (first, end, whether it is its grain's last) and dealt to jobs (weight, first chunk,
    past the last)."""

    chunks: tuple[Tensor, Tensor, Tensor]
    jobs: tuple[Tensor, Tensor, Tensor]

    @staticmethod
    def of(grains: Grains, *, rows: int, most_jobs: int, device: torch.device) -> _Jobs:
        start, end, weight = (t.cpu().numpy() for t in (grains.start, grains.end, grains.weight))
        chunks_of = -(-(end - start) // rows)
        start, end, weight, chunks_of = (a[chunks_of > 0] for a in (start, end, weight, chunks_of))
        after = np.cumsum(chunks_of)
        grain = np.repeat(np.arange(len(start)), chunks_of)
        first = start[grain] + (np.arange(len(grain)) - (after - chunks_of)[grain]) * rows
        last = np.zeros(len(grain), dtype=np.int64)
        last[after - 1] = 1
        size = max(1, -(-len(grain) // most_jobs))
        share = (after - chunks_of) // size  # which share of all chunks the grain begins in
        begins = np.flatnonzero((np.diff(weight, prepend=-1) != 0) | (np.diff(share, prepend=-1) != 0))
        job_first = (after - chunks_of)[begins]
        job_end = np.append(job_first[1:], len(grain))
        table = [first, end[grain], last, weight[begins], job_first, job_end]
        flat = torch.from_numpy(np.concatenate(table)).to(device, non_blocking=True)
        on_device = flat.split([len(column) for column in table])
        return _Jobs((on_device[0], on_device[1], on_device[2]), (on_device[3], on_device[4], on_device[5]))


def cell(device: torch.device) -> Tensor:
    """Where a kernel notes the largest magnitude: the bits of a float32, at first 0."""
    return torch.zeros((), dtype=torch.int32, device=device)


def weight_gradient(dy_NO: Tensor, x_NK: Tensor, grains: Grains, total: Tensor, big: float) -> Tensor:
    """Add each grain's dy^T x to ``total``, float64 of the weight's shape; the largest magnitude of a partial. Grains lie in
    the memory of the host, those of a weight together."""
    outputs, inputs = dy_NO.shape[1], x_NK.shape[1]
    assert total.dtype == torch.float64
    assert total.is_contiguous()
    blocks, largest = GRADIENT_BLOCKS[x_NK.dtype], cell(x_NK.device)
    tiles = triton.cdiv(outputs, blocks.outputs) * triton.cdiv(inputs, blocks.inputs)
    cut = _Jobs.of(grains, rows=blocks.rows, most_jobs=max(1, PROGRAMS // tiles), device=x_NK.device)
    weight_gradient_kernel[(tiles, cut.jobs[0].shape[0])](
        dy_NO, x_NK, *cut.chunks, *cut.jobs, total, largest, outputs, inputs,
        BIG=big, OUTPUTS=blocks.outputs, INPUTS=blocks.inputs, ROWS=blocks.rows,
        num_warps=blocks.warps, num_stages=blocks.stages, **UNFUSED,
    )  # fmt: skip
    return largest.view(torch.float32)


def embedding_gradient(dx_NH: Tensor, ids_N: Tensor, into: ExactSum) -> Tensor:
    """Add each row of dx to the row of ``into`` that its id names; the largest magnitude. Bound: bytes, and the atomics of
    ids that come often."""
    block, largest = 1024, cell(dx_NH.device)
    embedding_gradient_kernel[(triton.cdiv(dx_NH.numel(), block),)](
        dx_NH,
        ids_N,
        into.sum,
        largest,
        dx_NH.numel(),
        dx_NH.shape[1],
        BIG=into.big,
        BLOCK=block,
        num_warps=4,
        **UNFUSED,
    )
    return largest.view(torch.float32)
