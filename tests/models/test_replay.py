"""Routing replay against the formula-free oracle: the router's own forward, its selection answered with the record."""

import numpy as np
import pytest
import torch

from tests.models.small import packed_gradients, random_ids, random_routing, small_policy

LENGTHS = [19, 80]
ROWS = sum(LENGTHS)


class Oracle:
    """The policy's kernels, but whoever selects experts is answered with the record, layer after layer."""

    def __init__(self, kernels, recorded_NLK):
        self._kernels = kernels
        self._layers = iter(recorded_NLK.unbind(1))

    def __getattr__(self, name):
        return getattr(self._kernels, name)

    def select_experts(self, logits_NE, k):
        chosen_NK = next(self._layers).contiguous()
        assert chosen_NK.shape == (logits_NE.shape[0], k)
        return chosen_NK


def with_oracle(policy, recorded_NLK):
    oracle = Oracle(policy.kernels, recorded_NLK)
    policy.kernels = policy.prepared.kernels = policy.trunk._kernels = oracle
    return policy


def assert_equal(found, wanted):
    assert torch.equal(found[0], wanted[0])
    assert found[1].keys() == wanted[1].keys()
    for name, gradient in found[1].items():
        assert torch.equal(gradient, wanted[1][name]), name


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replay_equals_the_oracle_in_every_bit_of_log_probs_and_gradients(normalise, dtype):
    policy = small_policy(norm_topk_prob=normalise, dtype=dtype)
    ids_N, recorded_NLK = random_ids(ROWS), random_routing(policy, ROWS)
    with torch.no_grad():
        live_NLK = policy.forward_packed(ids_N, LENGTHS).routing_NLK
    assert (live_NLK != recorded_NLK).any(-1).double().mean() >= 0.1, "the record must differ from the live choice"
    found = packed_gradients(policy, ids_N, LENGTHS, recorded_NLK)
    oracle = with_oracle(small_policy(norm_topk_prob=normalise, dtype=dtype), recorded_NLK)
    assert_equal(found, packed_gradients(oracle, ids_N, LENGTHS))
    for name, gradient in found[1].items():
        if name.endswith("mlp.gate.weight"):
            assert gradient.abs().max() > 0, "the router must learn through the replay"


@pytest.mark.parametrize("normalise", [True, False])
def test_the_oracle_answers_hugging_faces_own_forward_too(normalise, monkeypatch):
    """Its logits and all its gradients, by torch's autograd, with ``torch.topk`` answered inside its routers."""
    policy = small_policy(norm_topk_prob=normalise, mlp_only_layers=[1])
    ids_N, recorded_NLK = random_ids(ROWS), random_routing(policy, ROWS)
    with torch.no_grad():
        live_NLK = policy.forward_packed(ids_N, LENGTHS).routing_NLK
        replayed_NV = policy.logits(policy.forward_packed(ids_N, LENGTHS, recorded_NLK).hidden_NH)
    assert (live_NLK != recorded_NLK).any(-1).double().mean() >= 0.1, "the record must differ from the live choice"
    upstream_N = torch.randn(ROWS, generator=torch.Generator().manual_seed(1)) / 64
    _, found = packed_gradients(policy, ids_N, LENGTHS, recorded_NLK, upstream_R=upstream_N)

    answers = iter([rows for sequence in recorded_NLK.split(LENGTHS) for rows in sequence.unbind(1)])

    def topk(values, k, dim=-1):
        indices = next(answers)
        assert (indices.shape[-1], dim) == (k, -1)
        return values.gather(-1, indices), indices

    policy.hf.requires_grad_(True)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "topk", topk)
        logits_NV = torch.cat([policy.hf(ids[None]).logits[0] for ids in ids_N.split(LENGTHS)])
    assert next(answers, None) is None, "every router was answered"
    torch.testing.assert_close(replayed_NV, logits_NV.detach(), rtol=1e-5, atol=3e-5)
    wanted_N = (logits_NV / 0.9).log_softmax(-1).gather(-1, ids_N[:, None])[:, 0]
    torch.autograd.backward(wanted_N, upstream_N)
    for name, parameter in policy.parameters().items():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_replaying_a_models_own_choice_changes_no_bit():
    policy = small_policy()
    ids_N = random_ids(ROWS)
    with torch.no_grad():
        routing = policy.forward_packed(ids_N, LENGTHS).routing_NLK
    free = packed_gradients(policy, ids_N, LENGTHS)
    assert_equal(free, packed_gradients(policy, ids_N, LENGTHS, routing.numpy().astype(np.uint8)))


def test_the_order_in_which_a_record_names_a_rows_experts_changes_no_bit():
    policy = small_policy()
    ids_N, routing = random_ids(ROWS), random_routing(policy, ROWS)
    found = packed_gradients(policy, ids_N, LENGTHS, routing)
    assert_equal(found, packed_gradients(policy, ids_N, LENGTHS, routing.flip(-1)))


def test_another_models_forward_is_untouched_by_a_replay():
    """Two models in a process, one of them replayed (fault R5): nothing is registered anywhere."""
    policy, other = small_policy(seed=0), small_policy(seed=1)
    ids_N = random_ids(ROWS)
    before = packed_gradients(other, ids_N, LENGTHS)
    packed_gradients(policy, ids_N, LENGTHS, random_routing(policy, ROWS))
    assert_equal(packed_gradients(other, ids_N, LENGTHS), before)


def test_a_column_of_a_record_is_that_of_the_layer_of_its_name():
    """Also where the first layer is dense, and another between (fault R7)."""
    policy = small_policy(num_hidden_layers=5, mlp_only_layers=[0, 3])
    names = ("layers.1.mlp", "layers.2.mlp", "layers.4.mlp")
    assert policy.trunk.routed_layers == tuple(f"{name}.gate" for name in names)
    pairs = torch.tensor([[0, 1], [2, 3], [4, 5]])  # the experts of each column, in every row
    _, gradients = packed_gradients(policy, random_ids(ROWS), LENGTHS, pairs.expand(ROWS, 3, 2))
    for name, pair in zip(names, pairs.tolist(), strict=True):
        moved = gradients[f"model.{name}.experts.down_proj"].flatten(1).abs().amax(-1) > 0
        assert moved.nonzero()[:, 0].tolist() == pair, name
    assert not any(f"layers.{dense}.mlp.experts" in name for name in gradients for dense in (0, 3))


def test_micro_batches_under_recomputation_keep_their_own_rows_and_bits():
    """Rows are keyed by micro-batch and layer, whenever a layer runs again (fault R6): there is no queue to be out of step
    with."""
    policy = small_policy(mlp_only_layers=[1])
    slabs = [(3, LENGTHS), (4, [70, 1, 13]), (5, [5])]
    batches = [(random_ids(sum(n), seed=s), n, random_routing(policy, sum(n), seed=s)) for s, n in slabs]

    def run(recompute):
        gradients, graphs = policy.gradients(), []
        for ids_N, lengths, routing in batches:  # all forwards before the first backward
            forwarded = policy.forward_packed(ids_N, lengths, routing, gradients=gradients, recompute=recompute)
            graphs.append(policy.logprobs(forwarded.hidden_NH, ids_N, temperature=1.0, gradients=gradients)[0])
        for logprobs in reversed(graphs):
            torch.autograd.backward(logprobs, torch.full_like(logprobs, 2.0**-8))
        return torch.cat([g.detach() for g in graphs]), gradients.scaled(1.0)

    assert_equal(run(recompute=True), run(recompute=False))
