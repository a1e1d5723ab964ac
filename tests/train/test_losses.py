"""The policy loss, the value loss and the KL estimate, token by token."""

import pytest
import torch

from t1actors.train.losses import kl_estimate, policy_terms, value_loss

LOG2 = float(torch.log(torch.tensor(2.0)))


def test_the_clip_decides_only_where_it_makes_the_loss_larger():
    #   ratio 2 and 1/2, each with a good and a bad token
    current = torch.tensor([LOG2, LOG2, -LOG2, -LOG2], requires_grad=True)
    terms = policy_terms(current, torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), clip=0.2)
    assert terms.loss_n.tolist() == pytest.approx([-1.2, 2.0, -0.5, 0.8])
    assert terms.clipped_n.tolist() == [True, False, False, True]
    terms.loss_n.sum().backward()
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0])


def test_equal_log_probs_give_a_ratio_of_exactly_1_and_the_plain_policy_gradient():
    current = torch.tensor([-0.3, -7.25], requires_grad=True)
    terms = policy_terms(current, current.detach().clone(), torch.tensor([0.5, -2.0]), clip=0.2)
    assert terms.ratio_n.tolist() == [1.0, 1.0]
    assert not terms.clipped_n.any()
    terms.loss_n.sum().backward()
    assert current.grad is not None
    assert current.grad.tolist() == [-0.5, 2.0]


def test_the_value_loss_takes_the_worse_of_the_free_and_the_clipped_value():
    #   V moved from 0 to .5 towards R = 1 (clipped .2 is worse), and to .5 away from R = -1 (free is worse)
    v = torch.tensor([0.5, 0.5], requires_grad=True)
    loss = value_loss(v, torch.zeros(2), torch.tensor([1.0, -1.0]), value_clip=0.2)
    assert loss.tolist() == pytest.approx([0.64, 2.25])
    loss.sum().backward()
    assert v.grad is not None
    assert v.grad.tolist() == pytest.approx([0.0, 3.0])


def test_a_value_clip_of_0_is_no_clip_at_all():
    loss = value_loss(torch.tensor([5.0]), torch.tensor([0.0]), torch.tensor([1.0]), value_clip=0.0)
    assert loss.tolist() == [16.0]


def test_the_kl_estimate_is_0_at_equality_and_never_negative():
    estimate = kl_estimate(torch.tensor([0.0, 0.5, -0.5]))
    assert estimate[0] == 0
    assert (estimate[1:] > 0).all()
