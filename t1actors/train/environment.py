"""What decides bits besides the log: the kernels, the operations as this process computes them, the constants of a step.

As a command (``python -m t1actors.train.environment KERNELS``) it tells this to a process that does without torch
(``runtime.numerics``), as one JSON object on stdout.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping

from t1kernels.choice import AUTO, KernelsInexact, choose, kernels_called
from t1kernels.fingerprint import fingerprint
from t1kernels.interface import Kernels
from t1kernels.native import NativeUnavailable

from t1actors.models.cut import EXPERT_PAGE
from t1actors.models.gradients import GRADIENT_BITS
from t1actors.train.exactness import exact


@functools.cache
def _environment(kernels: Kernels) -> dict[str, str]:
    with exact():
        return {
            **fingerprint(kernels),
            "expert_page": str(EXPERT_PAGE),
            "gradient_bits": str(GRADIENT_BITS),
        }


def environment(kernels: str = AUTO) -> dict[str, str]:
    """A hash for each operation that is relied on, as this process computes it, and what may explain another one
    (``t1kernels.fingerprint``). Takes about 0.1 s the first time. Raises ``NativeUnavailable``, ``KernelsInexact``."""
    return dict(_environment(kernels_called(kernels)))


def implementation(fingerprint: Mapping[str, str]) -> str:
    """The name by which to ask for the kernels that it was made with ("native" of "native/avx2"); empty where none is."""
    return fingerprint.get("kernels", "").partition("/")[0]


def answer(wanted: str) -> dict[str, object]:
    """What the command prints: ``kernels`` and ``numerics`` when they are there; ``passed_over`` says why not those that are
    faster; ``lacking`` why there are none, and ``instead`` which ones there would be."""
    try:
        numerics = environment(wanted)
    except (NativeUnavailable, KernelsInexact) as error:
        return {"lacking": str(error), "instead": _there(excepted=wanted)}
    passed_over = dict(choose().passed_over) if wanted == AUTO else {}
    return {"kernels": implementation(numerics), "numerics": numerics, "passed_over": passed_over}


def _there(*, excepted: str) -> str:
    if excepted == AUTO:
        return ""
    try:
        return implementation({"kernels": choose().kernels.name})
    except KernelsInexact:
        return ""


if __name__ == "__main__":
    json.dump(answer(sys.argv[1]), sys.stdout)
