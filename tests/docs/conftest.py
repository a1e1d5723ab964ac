import shutil
from pathlib import Path

import pytest

from tests.loop.runs import TinyRun


@pytest.fixture(scope="session")
def workplace(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory where a reader has made a run: `runs/latest` is a copy of the tests' small real run."""
    place = Path(tmp_path_factory.mktemp("workplace"))
    shutil.copytree(tiny_run.run_dir, place / "runs" / "tiny")
    (place / "runs" / "latest").symlink_to("tiny")
    return place
