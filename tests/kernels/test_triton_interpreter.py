"""The Triton kernels in Triton's interpreter, which needs no GPU: indexing, masks, formulas of gradients.

In a process of its own, since Triton decides when it is imported whether it interprets. The interpreter shows nothing of how
a GPU multiplies, adds up or rounds; ``python -m bench.gpu`` runs the contract on one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS, CONTRACT = "tests/kernels/interpreted_checks.py", "tests/kernels/test_contract.py"
QUICK = (
    "test_a_product_is_right_and_no_row_depends_on_its_batch[triton-torch.float32-8-128]",
    "test_a_weights_gradient_is_right_and_free_of_order[triton-torch.float32-1-40]",
    "test_grouped_products_equal_each_weights_own[triton-torch.float32]",
    "test_the_norm[triton-torch.float32-40]",
    "test_rotary_positions[triton-torch.float32]",
    "test_the_gated_unit[triton-torch.float32-20]",
    "test_the_embeddings_gradient_adds_every_row_exactly[triton-torch.float32]",
    "test_the_router_and_its_gate[triton-torch.float32-True]",
    "test_of_equally_probable_experts_the_lowest_are_chosen[triton]",
    "test_pairs_are_sorted_by_expert_and_combined_in_slot_order[triton-torch.float32]",
)

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="kernels triton are not here: triton is not installed"
)


def interpreted(*arguments: str) -> str:
    """What pytest says of these tests, all of which passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    return done.stdout


def test_indexing_masks_and_gradients_are_right_on_the_smallest_sizes():
    said = interpreted(CHECKS, *(f"{CONTRACT}::{name}" for name in QUICK))
    assert "skipped" not in said


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_whole_contract_holds(dtype: str):
    said = interpreted(CONTRACT, "-k", f"triton and {dtype}")
    assert "skipped" not in said


def test_without_a_gpu_and_without_the_interpreter_they_are_refused():
    code = "from t1kernels.triton_kernels import triton_kernels; triton_kernels()"
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=hidden, capture_output=True, text=True, check=False
    )
    assert "TritonUnavailable: torch sees no GPU" in done.stderr
