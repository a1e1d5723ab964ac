"""The torch settings under which a step's bits are promised: deterministic algorithms, one thread.

They are process-wide in torch, so a step sets them for its own duration and puts back what it found; two steps must not run
at once in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic


@contextmanager
def exact() -> Iterator[None]:
    """Deterministic algorithms and one thread inside the block."""
    threads = torch.get_num_threads()
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filling = torch.utils.deterministic.fill_uninitialized_memory
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor with NaN finds reads of uninitialised memory; it costs time and changes no correct result.
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filling
