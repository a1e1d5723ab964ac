"""What the process that looks for kernels answers."""

import json

import pytest
from t1kernels import choice
from t1kernels.native import NativeUnavailable
from t1kernels.padded import PaddedKernels

from t1actors.runtime.numerics import Search
from t1actors.train.environment import answer, environment, implementation
from t1actors.train.jobs import NetworkKind
from tests.train.tiny_batches import critic_state, policy_state, tiny_policy


def lacking():
    raise NativeUnavailable("no compiled kernels in there")


@pytest.fixture
def no_native(monkeypatch):
    """A machine without the compiled kernels, where nothing was chosen yet."""
    monkeypatch.setattr(choice, "IMPLEMENTATIONS", {"native": lacking, "padded": PaddedKernels})
    monkeypatch.setattr(choice, "not_invariant", lambda kernels: ())
    for cached in (choice.choose, choice.named_kernels):
        cached.cache_clear()
    yield
    for cached in (choice.choose, choice.named_kernels):
        cached.cache_clear()


def test_without_the_fast_kernels_the_next_ones_are_found_and_the_reason_is_told(no_native):
    found = answer("auto")
    assert found["kernels"] == "padded"
    assert found["passed_over"] == {"native": "no compiled kernels in there"}
    assert found["numerics"] == environment("padded")
    assert json.loads(json.dumps(found)) == found


def test_what_is_asked_for_by_name_is_not_replaced(no_native):
    assert answer("native") == {"lacking": "no compiled kernels in there", "instead": "padded"}
    assert answer("padded")["kernels"] == "padded"


def test_a_process_that_looks_has_the_fingerprint_that_a_step_here_has():
    with Search("padded", env={"OMP_NUM_THREADS": "1"}) as search:
        found = search.found()
    assert found.kernels == "padded"
    assert "operation float32 matmul" in found.facts
    assert found.facts == environment("padded")


def test_an_implementation_is_asked_for_without_its_instruction_set():
    assert implementation({"kernels": "native/avx2"}) == "native"
    assert implementation({}) == ""


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_a_rank_computes_with_the_kernels_that_it_is_told(part):
    policy = tiny_policy()
    state = policy_state(policy) if part == "actor" else critic_state(policy)[1]
    network = NetworkKind("float32", "padded").make(part, state)
    assert NetworkKind.of(network) == NetworkKind("float32", "padded")
