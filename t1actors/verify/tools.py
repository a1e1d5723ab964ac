"""The programs that grade: which they are, and that they stay the same.

Tests run with the host's Python under ``/usr``: that is the only part of the host a sandbox sees (read-only), so an
interpreter in a home directory or a virtual environment cannot serve. The digest covers the interpreter's and the shell's
bytes; the standard library behind them is not read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import blake3

from t1actors.sandbox.interface import HOST
from t1actors.verify.verdict import VerifyError

SEARCHED = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
"""The sandbox's PATH, as far as it is distinct on a merged-/usr host."""


@dataclass(frozen=True)
class Tools:
    """The programs that grade; ``digest`` covers their bytes."""

    interpreter: str
    """The real file that ``python3`` is in a sandbox."""
    shell: str
    digest: str


def find_tools() -> Tools:
    """What ``python3`` and ``bash`` mean inside a grading sandbox. Cheap when nothing changed.

    Raises:
        VerifyError: one of them is not under /usr.
    """
    interpreter, shell = _find("python3"), _find("bash")
    return Tools(interpreter, shell, _digest(_identity(interpreter), _identity(shell)))


def digest_on(base: str) -> str:
    """The digest of the programs that grade on ``base``: an image has them in it. Raises ``VerifyError``."""
    return find_tools().digest if base == HOST else base.removeprefix("sha256:")


def find_program(name: str) -> str | None:
    """The real file that ``name`` is in a sandbox with the host's own /usr; None where it has none."""
    for folder in SEARCHED:
        path = os.path.realpath(os.path.join(folder, name))
        if path.startswith("/usr/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _find(name: str) -> str:
    path = find_program(name)
    if path is not None:
        return path
    raise VerifyError(
        f"no {name} under /usr (searched {', '.join(SEARCHED)}); grading sandboxes see nothing else of this host. "
        f"Install the system's {name} (on Debian: apt-get install {name})"
    )


def _identity(path: str) -> tuple[str, int, int, int]:
    status = os.stat(path)
    return path, status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4)
def _digest(*files: tuple[str, int, int, int]) -> str:
    hasher = blake3.blake3()
    for path, *_ in files:
        hasher.update(blake3.blake3(Path(path).read_bytes()).digest())
    return hasher.hexdigest()
