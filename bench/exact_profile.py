"""Where the time of a piece of work goes: clocks around every kernel and every part of the optimizer.

Guarantees: a second is counted once, for the innermost clock that runs; what no clock sees is ``REST``: Python, autograd, and
torch's operations between the kernels (residual sums, gathering of rows).
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast
from unittest import mock

from t1kernels.interface import Kernels, Weight
from t1kernels.native import NativeWeight

from t1actors.models.gradients import Gradients
from t1actors.train import trainer

REST = "rest: Python, autograd, sums between the kernels"
OPTIMIZER = {
    "adamw": "optimizer: AdamW",
    "global_norm": "optimizer: norm",
    "clip_by_norm": "optimizer: clip",
    "tensor_digests": "optimizer: digests of gradients",
    "load_masters": "optimizer: masters into the network",
}


class Clocks:
    """CPU seconds by name, of this thread, exclusive of clocks within."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since_s = 0.0

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Counts for ``name`` within the block."""
        self._switch()
        self._running.append(name)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def _switch(self) -> None:
        now_s = time.thread_time()
        if self._running:
            self.seconds[self._running[-1]] += now_s - self._since_s
        self._since_s = now_s

    def timing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with a clock around it."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.around(name):
                return function(*arguments, **named)

        return timed


class _Clocked:
    """Kernels with a clock round every operation."""

    def __init__(self, kernels: Kernels, clocks: Clocks) -> None:
        self.name = kernels.name
        self._kernels, self._clocks = kernels, clocks

    def __getattr__(self, name: str) -> Any:
        timed = self._clocks.timing(name, getattr(self._kernels, name))
        setattr(self, name, timed)
        return timed

    def weight(self, tensor: Any) -> Weight:
        made = self._kernels.weight(tensor)
        if isinstance(made, NativeWeight):  # packs when it is first used, which is not that product's own time
            made._packed = self._clocks.timing("packing of weights", made._packed)  # type: ignore[method-assign]
        return made


def clocked(kernels: Kernels, clocks: Clocks) -> Kernels:
    """``kernels`` with a clock round every operation."""
    return cast(Kernels, _Clocked(kernels, clocks))


def profile(clocks: Clocks, run: Callable[[], object], *, times: int, optimizer: bool) -> dict[str, float]:
    """Seconds of ``run`` by operation, the mean of ``times`` runs after one that is not counted, the dearest first."""
    run()
    clocks.seconds.clear()
    with _optimizer(clocks) if optimizer else nullcontext():
        for _ in range(times):
            with clocks.around(REST):
                run()
    return dict(sorted(((name, s / times) for name, s in clocks.seconds.items()), key=lambda item: -item[1]))


@contextmanager
def _optimizer(clocks: Clocks) -> Iterator[None]:
    parts = [(trainer, name, shown) for name, shown in OPTIMIZER.items()]
    parts += [(Gradients, "scaled", "optimizer: gradients out of their sums")]
    parts += [(Gradients, "__init__", "optimizer: empty sums")]
    with ExitStack() as patches:
        for owner, name, shown in parts:
            patches.enter_context(mock.patch.object(owner, name, clocks.timing(shown, getattr(owner, name))))
        yield
