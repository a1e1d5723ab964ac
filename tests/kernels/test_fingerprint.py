"""A fingerprint is the same wherever bits are, and says which operations differ where they are not. That another process has
the same one: tests/train/test_environment.py."""

import pytest
import torch
from t1kernels.fingerprint import operations, surroundings
from t1kernels.hashes import COMBINED, differences
from t1kernels.samples import values

from tests.kernels.implementations import MAKERS, fastest, implementation
from tests.kernels.planted import Planted

torch.set_num_threads(1)


@pytest.fixture(scope="module", params=list(MAKERS))
def kernels(request):
    return implementation(request.param)


@pytest.fixture(scope="module")
def found(kernels):
    return operations(kernels)


def test_repeats_have_the_same_hashes(kernels, found):
    assert operations(kernels) == found
    assert len(found) > 60
    hashes = [found[name] for name in found if "select_experts" not in name]  # integers: alike in both dtypes
    assert len(set(hashes)) == len(hashes), "two operations with one hash: one of them computes nothing"


@pytest.mark.parametrize(
    ("operation", "result", "entries"),
    [
        ("matmul", 0, ["matmul"]),
        ("silu_mul", 0, ["silu_mul"]),
        ("rms_norm", 1, ["rms_norm", "rms_norm_gradient", "rms_norm_gradient of the weight"]),
        ("attend", 0, ["attend"]),
        ("gate_gradient", 0, ["gate_gradient"]),
        ("draw", 1, ["draw"]),
        ("attention_gradient", 2, ["attention_gradient"]),
    ],
)
def test_a_planted_change_in_one_kernel_changes_exactly_the_entries_that_use_it(operation, result, entries, recorded):
    here = operations(Planted(fastest(), operation, result=result))
    found = differences(recorded, here)
    assert [name for name in found if name.startswith("float32")] == [f"float32 {entry}" for entry in entries]
    # in bfloat16, whose unit in the last place is large, also what is computed from an attended row
    of_attended = {"attention_gradient"} if operation == "attend" else set()
    assert {name.partition(" ")[2] for name in found} - of_attended == set(entries) - of_attended
    assert recorded[COMBINED] != here[COMBINED]


@pytest.fixture(scope="module")
def recorded():
    return operations(fastest())


def test_an_operation_that_one_side_does_not_know_is_a_difference(recorded):
    assert differences({**recorded, "operation float32 of another version": "0"}, recorded) == [
        "float32 of another version"
    ]
    assert differences(recorded, {**recorded, "torch": "another"}) == []


def test_what_may_explain_a_difference_is_read(kernels, monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    found = surroundings(kernels)
    assert found["kernels"] == kernels.name
    assert found["torch"] == torch.__version__
    assert found["threads"] == "1"
    assert "MKL_CBWR=COMPATIBLE" in found["variables"]
    assert "NUM_THREADS" not in found["variables"], "threads are what torch says, whoever set them"
    assert all(isinstance(value, str) for value in found.values())
    assert ("kernels_build" in found) == kernels.name.startswith("native")


def test_inputs_are_what_integer_arithmetic_says():
    def number(n):
        mixed = n * 2654435761 % 2**32
        mixed = (mixed ^ mixed >> 15) * 1103515245 % 2**32
        return ((mixed >> 8) - 2**23) / 2**22

    found = values(50, 2, salt=3).flatten().tolist()
    assert found == [number(n + 3 * 7919) for n in range(100)]
    assert min(found) < -1.5
    assert max(found) > 1.5
