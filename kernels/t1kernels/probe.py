"""Whether an implementation keeps its promise on this machine: no row's bits depend on its batch.

Compilers, instruction sets and libraries decide that, so it is tried where the program runs, in a fraction of a second,
before anything is recorded. ``t1kernels.choice`` refuses an implementation that fails.

Guarantees: deterministic; the inputs are integers. What passes was tried for the batch sizes of ``BATCHES`` at three
places; the tests try more (tests/kernels).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from t1kernels.interface import Kernels
from t1kernels.samples import GRAINS, LENGTHS, ROWS, OfGrains, OfRows, OfSequences, samples

BATCHES = (1, 2, 3, 4, 5, 16, 17, 64)
DTYPES = (torch.float32, torch.bfloat16)


@contextmanager
def one_thread() -> Iterator[None]:
    """As everything exact is computed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def not_invariant(kernels: Kernels, dtypes: tuple[torch.dtype, ...] = DTYPES) -> tuple[str, ...]:
    """The operations that give a row (a grain, a sequence) other bits in another batch, as "float32 matmul"."""
    found: list[str] = []
    for dtype in dtypes:
        tried = samples(kernels, dtype)
        verdicts = itertools.chain(
            ((name, rows_alike(operation)) for name, operation in tried.rows.items()),
            ((name, _grains_alike(operation)) for name, operation in tried.grains.items()),
            ((name, _sequences_alike(operation)) for name, operation in tried.sequences.items()),
        )
        found += [f"{name_of(dtype)} {name}" for name, alike in verdicts if not alike]
    return tuple(found)


def name_of(dtype: torch.dtype) -> str:
    """ "float32" and the like."""
    return str(dtype).removeprefix("torch.")


def rows_alike(operation: OfRows) -> bool:
    """Rows in batches of every size, at the front, in the middle and at the end, against all rows at once."""
    whole = operation(torch.arange(ROWS))
    for size in BATCHES:
        for start in (0, (ROWS - size) // 2, ROWS - size):
            some = operation(torch.arange(start, start + size))
            for one, all_of_them in zip(some, whole, strict=True):
                if not torch.equal(one, all_of_them[start : start + size]):
                    return False
    return True


def _grains_alike(operation: OfGrains) -> bool:
    numbers = range(GRAINS)
    one_by_one = sum(operation([n]) for n in reversed(numbers))
    return torch.equal(operation(list(numbers)), torch.as_tensor(one_by_one))


def _sequences_alike(operation: OfSequences) -> bool:
    whole = operation(range(len(LENGTHS)))
    alone = [operation([n])[0] for n in range(len(LENGTHS))]
    return all(
        torch.equal(a, b) for one, other in zip(whole, alone, strict=True) for a, b in zip(one, other, strict=True)
    )
