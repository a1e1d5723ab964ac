"""Checks of the kernels: which ones a run would use here, and why not those that are faster."""

from __future__ import annotations

from t1actors.cli.checks import Check
from t1actors.runtime.numerics import FIXES, KernelsLacking, NumericsUnknown, Search


def of_kernels(search: Search) -> list[Check]:
    """What ``search``, begun for ``auto``, finds."""
    try:
        numerics = search.found()
    except KernelsLacking as error:
        return [Check("kernels", "bad", error.why, "install t1actors in an environment of its own: `just setup`")]
    except NumericsUnknown as error:
        return [Check("kernels", "bad", str(error))]
    used = Check("kernels", "good", f"{numerics.facts.get('kernels', numerics.kernels)}: exact here")
    passed_over = [
        Check(
            f"kernels {name}", "warning", f"not used: {why}", f"a run is slower without: {FIXES.get(name, 'see above')}"
        )
        for name, why in numerics.passed_over.items()
    ]
    return [used, *passed_over]
