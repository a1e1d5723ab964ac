"""Every grading test runs on each backend that can be had."""

from functools import partial

import pytest

from tests.verify.trials import BACKENDS, OnABench, on_a_bench


@pytest.fixture(scope="session")
def built_tools(tmp_path_factory):
    """Where tool layers are kept once they are built."""
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(params=sorted(BACKENDS), name="on_a_bench")
def _on_a_bench(request, built_tools, host_makes_sandboxes) -> OnABench:
    """``on_a_bench(test)`` runs ``test(bench)`` on real sandboxes of the backend at hand."""
    return partial(on_a_bench, BACKENDS[request.param], tools=built_tools)
