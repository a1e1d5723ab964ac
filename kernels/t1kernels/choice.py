"""Which kernels a process uses: the compiled ones where they are and keep their promise here, else those in torch.

Guarantees: kernels that the probe finds to be inexact on this machine are never handed out (``KernelsInexact``: fails
closed). The choice is made once a process; the probe takes about 0.2 s for the compiled kernels and 1 s for those in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from t1kernels.interface import Kernels
from t1kernels.native import NativeKernels, NativeUnavailable
from t1kernels.padded import PaddedKernels
from t1kernels.probe import not_invariant

IMPLEMENTATIONS: Mapping[str, Callable[[], Kernels]] = {"native": NativeKernels, "padded": PaddedKernels}
"""By the name to ask for them, fastest first."""
AUTO = "auto"
"""The name that leaves the choice to the machine."""


class KernelsInexact(Exception):
    """No implementation keeps its promise here. Says which operations of which one do not, and what can be done."""


@dataclass(frozen=True)
class Choice:
    """``passed_over``: for each faster implementation by name why it is not the one."""

    kernels: Kernels
    passed_over: Mapping[str, str]


@functools.cache
def choose() -> Choice:
    """The fastest implementation that is here and passes the probe. Raises ``KernelsInexact``."""
    passed_over: dict[str, str] = {}
    for name in IMPLEMENTATIONS:
        try:
            return Choice(named_kernels(name), passed_over)
        except (NativeUnavailable, KernelsInexact) as error:
            passed_over[name] = str(error)
    raise KernelsInexact(
        "no kernels give a row the same bits in every batch on this machine:\n"
        + "\n".join(f"  {name}: {why}" for name, why in passed_over.items())
    )


def default_kernels() -> Kernels:
    """The kernels of ``choose``."""
    return choose().kernels


def kernels_called(name: str) -> Kernels:
    """``auto``: those of ``choose``; else ``named_kernels``."""
    return choose().kernels if name == AUTO else named_kernels(name)


@functools.cache
def named_kernels(name: str) -> Kernels:
    """The implementation of that name, and no other. Raises ``NativeUnavailable``, ``KernelsInexact``, ``ValueError``."""
    maker = IMPLEMENTATIONS.get(name)
    if maker is None:
        raise ValueError(f"there are no kernels called {name!r}; there are {', '.join(IMPLEMENTATIONS)}")
    kernels = maker()
    inexact = not_invariant(kernels)
    if inexact:
        raise KernelsInexact(
            f"the kernels {kernels.name} give a row other bits in another batch for {', '.join(inexact)}: sampler and "
            "trainer would disagree. The versions of torch and of its libraries decide that (for native: the compiler): "
            "install the package anew in an environment of its own, or use other kernels"
        )
    return kernels
