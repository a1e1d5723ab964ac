from pathlib import Path

import pytest

from tests.loop.runs import TinyRun, make_run


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """Made once; tests only read it (those that damage a run copy its directory first)."""
    return make_run(Path(tmp_path_factory.mktemp("run")) / "tiny")
