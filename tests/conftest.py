"""What tests of several rooms share.

A host that can make no sandboxes (an ordinary user, an unprivileged container) fails no test: those that asked for one are
skipped, each by its name and with the reason. Where sandboxes can be made nothing is excused, and with
``--require-sandboxes`` (as in continuous integration) nothing is excused anywhere.
"""

import signal
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from t1actors.runtime.errors import leaves
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.probe import probe
from tests.docker_daemon import Daemon, own_daemon, why_no_daemon
from tests.ordinary_user import WAYS, OrdinaryUser, why_no_ordinary_user

if TYPE_CHECKING:
    from tests.loop.runs import TinyRun


@pytest.fixture(scope="session")
def tiny_run(host_makes_sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> "TinyRun":
    """One small real run, made once; tests only read it (those that damage a run copy its directory first)."""
    from tests.loop.runs import make_run  # here, so that tests without a run do not wait for torch

    return make_run(Path(tmp_path_factory.mktemp("run")) / "tiny")


@cache
def why_no_sandboxes() -> str:
    """Empty where this host makes them; else what failed and the fix."""
    report = anyio.run(probe)
    if report.works:
        return ""
    failed = next(check for check in report.checks if not check.ok)
    return f"needs a host that can make sandboxes: {failed.name}: {failed.detail}. {failed.fix}"


def pytest_configure() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would every program that a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-sandboxes", action="store_true", help="a host that can make none fails the tests")


@pytest.fixture(scope="session")
def host_makes_sandboxes(request: pytest.FixtureRequest) -> None:
    """Skips where no sandbox can be made."""
    if why_no_sandboxes():
        if request.config.getoption("--require-sandboxes"):
            pytest.fail(why_no_sandboxes())
        pytest.skip(why_no_sandboxes())


@pytest.fixture(params=WAYS)
def user(request: pytest.FixtureRequest, host_makes_sandboxes: None) -> Generator[OrdinaryUser, None, None]:
    """An ordinary user, with subordinate ids and without; skips, by name, where none can be made up."""
    if reason := why_no_ordinary_user(request.param):
        pytest.skip(reason)
    someone = OrdinaryUser(request.param)
    yield someone
    someone.remove()


@pytest.fixture(scope="session")
def docker_daemon() -> Generator[Daemon, None, None]:
    """A daemon of the tests' own; skips, by name, where none can be started."""
    if reason := why_no_daemon():
        pytest.skip(f"Docker: {reason}")
    with own_daemon() as daemon:
        yield daemon


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    yield from _excused(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield from _excused(item)


def _excused(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    except Exception as error:
        if item.config.getoption("--require-sandboxes"):
            raise
        if any(isinstance(leaf, SandboxUnavailable) for leaf in leaves(error)) and why_no_sandboxes():
            pytest.skip(why_no_sandboxes())
        raise
