"""Routing replay against the formula-free oracle: the router's own forward, its ``topk`` answered with the record."""

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.models.small import random_ids, random_routing, small_policy

LENGTHS = [19, 8]
ROWS = sum(LENGTHS)


def loss_of(policy, routing, ids_N=None):
    ids_N = random_ids(ROWS) if ids_N is None else ids_N
    forwarded = policy.forward_packed(ids_N, LENGTHS, routing)
    return policy.logits(forwarded.hidden_NH), forwarded.routing_NLK


def gradients(policy, logits):
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(9))
    found = torch.autograd.grad((logits * weights).sum(), list(policy.parameters().values()), allow_unused=True)
    return dict(zip(policy.parameters(), found, strict=True))


def oracle_topk(recorded_NLK):
    layers = iter(range(recorded_NLK.shape[1]))

    def topk(values, k, dim=-1):
        indices = recorded_NLK[:, next(layers)]
        assert (indices.shape[-1], dim) == (k, -1)
        return values.gather(-1, indices), indices

    return topk


@pytest.mark.parametrize("experts", ["grouped_mm", "eager"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replay_equals_the_oracle_in_every_bit_of_logits_and_gradients(experts, normalise, dtype, monkeypatch):
    policy = small_policy(experts=experts, norm_topk_prob=normalise, dtype=dtype)
    recorded_NLK = random_routing(policy, ROWS)
    logits, used = loss_of(policy, recorded_NLK)
    assert torch.equal(used, recorded_NLK)
    replayed = gradients(policy, logits)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "topk", oracle_topk(recorded_NLK))
        wanted_logits, _ = loss_of(policy, None)
    wanted = gradients(policy, wanted_logits)
    assert torch.equal(logits, wanted_logits)
    for name, gradient in replayed.items():
        assert gradient is not None, name
        assert torch.equal(gradient, wanted[name]), name
        if name.endswith("mlp.gate.weight"):
            assert gradient.abs().max() > 0, "the router must learn through the replay"


def test_the_oracle_answers_hugging_faces_own_forward_too(monkeypatch):
    policy = small_policy()
    recorded_NLK = random_routing(policy, LENGTHS[0])
    ids_N = random_ids(LENGTHS[0])
    replayed = policy.logits(policy.forward_packed(ids_N, LENGTHS[:1], recorded_NLK).hidden_NH)
    monkeypatch.setattr(torch, "topk", oracle_topk(recorded_NLK))
    torch.testing.assert_close(replayed, policy.hf(ids_N[None]).logits[0], rtol=1e-5, atol=1e-5)


def test_replaying_a_models_own_choice_changes_no_bit():
    policy = small_policy()
    free, routing = loss_of(policy, None)
    replayed, _ = loss_of(policy, routing.numpy().astype(np.uint8))
    assert torch.equal(free, replayed)
    for a, b in zip(gradients(policy, free).values(), gradients(policy, replayed).values(), strict=True):
        assert torch.equal(a, b)


def test_another_models_forward_is_untouched_by_a_replay():
    policy, other = small_policy(seed=0), small_policy(seed=1)
    before, _ = loss_of(other, None)
    loss_of(policy, random_routing(policy, ROWS))
    after, _ = loss_of(other, None)
    assert torch.equal(before, after)


def test_micro_batches_under_activation_recompute_keep_their_own_rows():
    policy = small_policy()
    batches = [(random_ids(ROWS, seed=s), random_routing(policy, ROWS, seed=s)) for s in (3, 4)]

    def logits_of(ids_N, routing_NLK):
        return loss_of(policy, routing_NLK, ids_N)[0]

    plain = gradients(policy, torch.cat([logits_of(*b) for b in batches]))
    recomputed = gradients(policy, torch.cat([checkpoint(logits_of, *b, use_reentrant=False) for b in batches]))
    for name, gradient in plain.items():
        assert torch.equal(gradient, recomputed[name]), name
