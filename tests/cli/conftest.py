"""`t1 run` with one toy actor, on a machine that passes all checks."""

from pathlib import Path

import pytest

from t1actors.cli import run
from t1actors.cli.checks import Check
from t1actors.cli.preflight import Preflight


@pytest.fixture
def toy_run(monkeypatch, tmp_path):
    """The directory for it."""

    async def fine(directory=None):
        return [Check("sandbox", "good", "works")]

    monkeypatch.setattr(run, "ACTORS", {"publisher": "tests.cli.toy:Publisher"})
    monkeypatch.setattr(run, "ACTOR_ENVIRONMENT", {"PYTHONPATH": str(Path(__file__).parents[2])})
    monkeypatch.setattr(run, "sandbox_checks", fine)
    monkeypatch.setattr(run, "preflight", lambda config, memory_bytes: Preflight(None, ()))
    return tmp_path / "runs" / "toy"
