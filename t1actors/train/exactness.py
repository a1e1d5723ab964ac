"""The torch settings under which a step's bits are promised: deterministic algorithms, one thread.

Deterministic algorithms are a setting of the process, the number of threads one of the calling thread. A step holds both
for its own duration; several steps may do so at once in one process (the critic's and the actor's overlap in an embedded
run), and the last to end puts back what the first found.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Deterministic:
    """Counts the blocks that need deterministic algorithms; torch has this setting once a process, so this is too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._found = 0

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                # Not use_deterministic_algorithms: that one loads torch's compiler too, a second of CPU, to tell it.
                self._found = torch.get_deterministic_debug_mode()
                torch.set_deterministic_debug_mode("error")
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.set_deterministic_debug_mode(self._found)


_deterministic = _Deterministic()


@contextmanager
def exact() -> Iterator[None]:
    """Deterministic algorithms, and one thread for what this thread computes, inside the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _deterministic.enter()
    try:
        yield
    finally:
        _deterministic.leave()
        torch.set_num_threads(threads)
