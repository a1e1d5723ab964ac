"""`t1 run` with one toy actor, on a machine that passes all checks."""

import pytest

from tests.cli.toy import install


@pytest.fixture
def toy_run(monkeypatch, tmp_path):
    """The directory for it."""
    install(monkeypatch.setattr)
    return tmp_path / "runs" / "toy"
