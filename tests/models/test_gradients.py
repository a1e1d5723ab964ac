"""How much of a gradient the grid of the exact sums rounds away, and what happens at the grid's other end."""

import math

import pytest
import torch
from t1kernels.exact import ExactRangeError

from t1actors.models.gradients import GRADIENT_BITS, Coarsest, Gradients

QUANTUM = 2.0**-GRADIENT_BITS


def sums(**partials):
    """Gradients to which the tensors of these names were added once."""
    gradients = Gradients({name: partial.shape for name, partial in partials.items()})
    for name, partial in partials.items():
        gradients.sums[name].add(partial)
    return gradients


def test_the_tensor_that_the_grid_rounds_most_is_named_with_how_much():
    small = torch.tensor([3.0, 4.0]) * 2.0**-40
    found = sums(large=torch.ones(5), small=small, none=torch.zeros(3)).coarsest()
    assert found.tensor == "small"
    assert found.ratio == pytest.approx(QUANTUM / (5 * 2.0**-40 / math.sqrt(2)))


def test_a_gradient_that_the_grid_swallows_is_infinitely_coarse_and_one_that_nobody_gave_is_not():
    assert sums(gone=torch.full((2,), QUANTUM / 4)).coarsest() == Coarsest(math.inf, "gone")
    assert sums(none=torch.zeros(2)).coarsest() == Coarsest()


def test_of_several_updates_the_coarsest_counts():
    assert Coarsest.of([Coarsest(1e-9, "a"), Coarsest(1e-7, "b"), Coarsest(1e-8, "a")]) == Coarsest(1e-7, "b")
    assert Coarsest.of([]) == Coarsest()


def test_a_sum_out_of_range_says_how_far_and_one_that_is_no_number_says_that():
    with pytest.raises(
        ExactRangeError, match=r"big is too large to be summed exactly: 1 partials up to 700, .*512"
    ) as big:
        sums(big=torch.tensor([700.0])).scaled(1.0)
    with pytest.raises(ExactRangeError, match="odd is not finite") as odd:
        sums(odd=torch.tensor([torch.nan])).scaled(1.0)
    assert (big.value.finite, odd.value.finite) == (True, False)
