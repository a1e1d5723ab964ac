"""How much memory a piece of work needs at the most, as torch's allocator sees it.

The kernels take all their scratch memory from torch (those in C have no allocation of their own), so the sum of what is
live counts everything but Python's objects, and, unlike a process's resident memory, it is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from t1kernels import functions
from t1kernels.exact import ExactSum
from t1kernels.interface import Kernels
from torch.profiler import ProfilerActivity, profile

from t1actors.models.cut import Cut
from t1actors.models.gradients import GRADIENT_BITS


@dataclass(frozen=True)
class Peaks:
    """Bytes above what was there before, each part at its most."""

    forward: int
    backward: int


def peak_bytes(run: Callable[[], object]) -> int:
    """The largest number of bytes that were live at a time and were not when ``run`` began."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        kept = run()
    del kept
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()  # type: ignore[attr-defined]  (torch's stubs do not know it)
        peak = max(peak, live)
    return peak


def selected_logprobs(kernels: Kernels, rows: int, hidden: int, vocabulary: int, dtype: torch.dtype) -> Peaks:
    """Log-probs of ``rows`` tokens from hidden states, and their gradients. What belongs to the weight and lives as long
    (its copy for the kernels, the sum of its gradient) is made before."""
    generator = torch.Generator().manual_seed(0)
    hidden_RH = torch.randn(rows, hidden, generator=generator).to(dtype).requires_grad_()
    head = kernels.weight((torch.randn(vocabulary, hidden, generator=generator) * 0.02).to(dtype))
    ids_R = torch.randint(0, vocabulary, (rows,), generator=generator)
    into = ExactSum("head", (vocabulary, hidden), bits=GRADIENT_BITS)
    found: list[torch.Tensor] = []

    def forward(some: slice) -> torch.Tensor:
        grains = Cut.of([len(range(rows)[some])]).dense()
        logprob_R, _ = functions.selected_logprob(
            kernels, hidden_RH[some], head, ids_R[some], temperature=1.0, grains=grains, into=into
        )
        return logprob_R

    forward(slice(0, 1)).sum().backward()  # the weight's copies in both directions
    hidden_RH.grad = None
    peak = peak_bytes(lambda: found.append(forward(slice(0, rows))))
    return Peaks(peak, peak_bytes(lambda: found[0].sum().backward()))


def full_logits(rows: int, hidden: int, vocabulary: int, dtype: torch.dtype) -> Peaks:
    """The same of torch's own operations: logits, then ``cross_entropy``. The gradient of the head, which a step needs in
    any case, is not counted, as that of ``selected_logprobs`` is not."""
    generator = torch.Generator().manual_seed(0)
    hidden_RH = torch.randn(rows, hidden, generator=generator).to(dtype).requires_grad_()
    head_VH = (torch.randn(vocabulary, hidden, generator=generator) * 0.02).to(dtype)
    ids_R = torch.randint(0, vocabulary, (rows,), generator=generator)
    found: list[torch.Tensor] = []

    def forward() -> None:
        logits_RV = torch.nn.functional.linear(hidden_RH, head_VH)
        found.append(torch.nn.functional.cross_entropy(logits_RV.float(), ids_R, reduction="none"))

    return Peaks(peak_bytes(forward), peak_bytes(lambda: found[0].sum().backward()))
