"""What tests of several rooms share."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.loop.runs import TinyRun


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> "TinyRun":
    """One small real run, made once; tests only read it (those that damage a run copy its directory first)."""
    from tests.loop.runs import make_run  # here, so that tests without a run do not wait for torch

    return make_run(Path(tmp_path_factory.mktemp("run")) / "tiny")
