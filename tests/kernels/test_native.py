"""The compiled kernels: one result, whatever the instruction set."""

import sys

import pytest
import torch
from blake3 import blake3
from t1kernels.exact import ExactSum
from t1kernels.fingerprint import operations
from t1kernels.hashes import differences
from t1kernels.native import NativeKernels, NativeUnavailable
from t1kernels.native.library import INTERFACE, PLAIN, SIGNATURES, library
from t1kernels.padded import PaddedKernels
from t1kernels.samples import values

from tests.kernels.implementations import implementation
from tests.kernels.test_contract import grains_of


def of(instructions):
    try:
        return NativeKernels(instructions)
    except NativeUnavailable as error:
        pytest.skip(f"kernels native/{instructions} are not here: {error}")


@pytest.fixture(scope="module")
def both():
    return of("avx2"), of("portable")


def test_both_instruction_sets_give_the_same_bits_for_every_operation(both):
    avx2, portable = both
    assert differences(operations(avx2), operations(portable)) == []


@pytest.mark.parametrize("rows", [1, 2, 5, 11, 100])
def test_and_for_products_of_awkward_sizes(both, rows):
    for outputs, inputs in ((130, 100), (448, 24), (1, 40), (17, 300)):
        w, x = values(outputs, inputs, salt=1), values(rows, inputs, salt=2)
        dy = values(rows, outputs, salt=3)
        found = []
        for kernels in both:
            weight, into = kernels.weight(w), ExactSum("weight", w.shape, bits=30)
            kernels.weight_gradient(dy, x, grains_of(rows), into)
            found.append((kernels.matmul(x, weight), kernels.matmul_gradient(dy, weight), into.sum))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_weight_that_other_kernels_made_is_refused(both):
    weight = PaddedKernels().weight(values(16, 16, salt=1))
    with pytest.raises(AssertionError, match="PaddedWeight was made by other kernels"):
        both[0].matmul(values(1, 16, salt=2), weight)


def test_a_tensor_with_gaps_is_refused_and_not_read_wrongly() -> None:
    kernels = implementation("native")
    logits = torch.randn(4, 300)
    apart = torch.full((8,), 1.0)[::2]
    with pytest.raises(ValueError, match="has gaps"):
        kernels.draw(logits, apart, torch.full((4,), 0.5, dtype=torch.float64))


def test_the_interfaces_number_is_raised_with_its_signatures() -> None:
    """Python and the compiled file must agree in every argument: a mismatch reads and writes anywhere."""
    signatures = repr([(name, [str(t) for t in (r, *a)]) for name, (r, a) in [*SIGNATURES.items(), *PLAIN.items()]])
    assert (INTERFACE, blake3(signatures.encode()).hexdigest()[:16]) == (1, "13e2b148fcc76505"), (
        "raise INTERFACE, here and in portable.c"
    )


def test_a_library_of_another_interface_is_refused_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    implementation("native")
    monkeypatch.setattr(sys.modules["t1kernels.native.library"], "INTERFACE", 0)
    library.cache_clear()
    try:
        with pytest.raises(NativeUnavailable, match="compiled from other sources"):
            library()
    finally:
        library.cache_clear()
