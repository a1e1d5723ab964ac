"""`t1 doctor`: what this machine can do, what it lacks, and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter

from t1actors.cli.checks import bad, machine_checks, sandbox_checks

MARKS = {"good": "ok", "warning": "warn", "bad": "BAD"}


def doctor(directory: Annotated[Path, Parameter(help="Where runs would be kept.")] = Path("runs")) -> int:
    """Look at this machine and try one whole sandbox.

    Exit status 0: a run can start here. 1: something is missing, and the line says what to do.

    Example: `t1 doctor`
    """
    checks = [*machine_checks(directory), *trio.run(sandbox_checks)]
    for check in checks:
        print(f"{MARKS[check.verdict]:<5} {check.name:<24} {check.found}")
        if check.fix:
            print(f"{'':<30} {check.fix}")
    missing = bad(checks)
    print("a run can start here" if not missing else f"not ready: {', '.join(c.name for c in missing)}")
    return 1 if missing else 0
