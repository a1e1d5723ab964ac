"""What the doctor says of networks and of the image store."""

from functools import partial
from pathlib import Path

import pytest
import trio

from t1actors.cli.checks import bad, sandbox_checks
from t1actors.cli.checks_images import image_checks
from tests.sandbox.remote import why_no_network


def test_a_sandbox_with_a_network_is_made(host_makes_sandboxes: None) -> None:
    if reason := why_no_network():
        pytest.skip(f"network: {reason}")
    [check] = [c for c in trio.run(partial(sandbox_checks, thorough=True)) if c.name == "network"]
    assert (check.verdict, check.fix) == ("good", "")
    assert check.found.startswith("internet by slirp4netns")


def test_without_the_tool_the_rest_works_and_the_fix_is_said(
    host_makes_sandboxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = trio.run(partial(sandbox_checks, thorough=True))
    [check] = [c for c in checks if c.name == "network"]
    assert (check.verdict, bad(checks)) == ("warning", [])
    assert "apt-get install slirp4netns" in check.fix
    assert "Only tasks and builds that ask for a network need it" in check.fix


def test_an_image_is_built_where_the_store_is_or_would_be_and_nothing_of_it_stays(
    host_makes_sandboxes: None, tmp_path: Path
) -> None:
    [check] = image_checks(tmp_path / "not/yet")
    assert (check.verdict, check.found) == ("good", f"2 layers built and mounted in {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_image_can_be_kept_is_named_with_what_to_set(host_makes_sandboxes: None) -> None:
    [check] = image_checks(Path("/proc/images"))
    assert check.verdict == "warning"
    assert check.found.startswith("/proc cannot be written: ")
    assert "sandbox.images" in check.fix
