"""The disk under a simulation: the power-cut model of the log's tests, where each system call may be somebody's last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.log.sectors import Disk


class SimDisk(Disk):
    """``before`` is called before each system call on a file below ``root``."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, before: Callable[[str], None]) -> None:
        self._before = before
        super().__init__(root, patch)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._watched(name, call)

        def watched(*arguments: Any, **more: Any) -> Any:
            if self._place(arguments[0]) is not None:
                self._before(name)
            return inner(*arguments, **more)

        return watched
