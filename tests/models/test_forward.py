"""The one forward against Hugging Face's own."""

import pytest
import torch

from t1actors.models.routing import RoutingError
from tests.models.small import packed_gradients, random_ids, random_routing, small_policy


def hugging_face(policy, ids_N):
    """(logits, chosen experts) of the stock forward on one sequence."""
    chosen = []
    gates = [policy.hf.get_submodule(f"model.{name}") for name in policy.trunk.routed_layers]
    hooks = [gate.register_forward_hook(lambda module, args, out: chosen.append(out[2])) for gate in gates]
    with torch.no_grad():
        logits_NV = policy.hf(ids_N[None]).logits[0]
    for hook in hooks:
        hook.remove()
    return logits_NV, torch.stack(chosen, dim=1)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"norm_topk_prob": False},
        {"mlp_only_layers": [0]},
        {"attention_bias": True},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"num_experts_per_tok": 5},
    ],
    ids=str,
)
def test_a_packed_slab_equals_hugging_faces_forward_of_each_sequence(overrides):
    policy = small_policy(**overrides)
    lengths = [17, 1, 40]
    ids_N = random_ids(sum(lengths))
    with torch.no_grad():
        forwarded = policy.forward_packed(ids_N, lengths)
        logits_NV = policy.logits(forwarded.hidden_NH)
    for ids, logits, routing in zip(
        *(t.split(lengths) for t in (ids_N, logits_NV, forwarded.routing_NLK)), strict=True
    ):
        wanted_logits, wanted_routing = hugging_face(policy, ids)
        torch.testing.assert_close(logits, wanted_logits, rtol=1e-5, atol=3e-5)
        assert torch.equal(routing, wanted_routing.sort(dim=-1).values)


def test_what_is_packed_beside_a_sequence_does_not_change_it():
    policy = small_policy()
    a, b = random_ids(20, seed=1), random_ids(33, seed=2)
    with torch.no_grad():
        alone = policy.forward_packed(a, [20]).hidden_NH
        together = policy.forward_packed(torch.cat([b, a]), [33, 20]).hidden_NH[33:]
    assert torch.equal(alone, together)


def test_bfloat16_stays_bfloat16_and_near_float32():
    policy, half = small_policy(), small_policy(dtype=torch.bfloat16)
    ids_N = random_ids(25)
    with torch.no_grad():
        routing = policy.forward_packed(ids_N, [25]).routing_NLK
        wanted = policy.forward_packed(ids_N, [25], routing).hidden_NH
        got = half.forward_packed(ids_N, [25], routing).hidden_NH
    assert got.dtype == torch.bfloat16
    assert (got.float() - wanted).abs().mean() < 0.05


def test_routed_layers_are_named_and_dense_layers_have_none():
    policy = small_policy(mlp_only_layers=[0])
    assert policy.trunk.routed_layers == ("layers.1.mlp.gate", "layers.2.mlp.gate")
    assert policy.shape.routed_layers == 2
    assert policy.forward_packed(random_ids(4), [4]).routing_NLK.shape == (4, 2, 2)


def test_lengths_that_do_not_cover_the_slab_are_refused():
    with pytest.raises(ValueError, match="lengths sum to 3"):
        small_policy().forward_packed(random_ids(4), [3])


def test_logprobs_are_those_of_the_logits():
    policy = small_policy()
    ids_N = random_ids(12)
    with torch.no_grad():
        hidden_NH = policy.forward_packed(ids_N, [12]).hidden_NH
        logprobs, entropy = policy.logprobs(hidden_NH, ids_N, temperature=0.5)
        wanted = torch.log_softmax(policy.logits(hidden_NH) / 0.5, dim=-1)
    torch.testing.assert_close(logprobs, wanted.gather(-1, ids_N[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, -(wanted.exp() * wanted).sum(-1), rtol=1e-4, atol=1e-4)


def test_narrowing_to_wanted_rows_changes_no_bit_of_them():
    policy = small_policy()
    ids_N, rows_R, lengths = random_ids(30), torch.tensor([3, 9, 17, 29]), [18, 12]
    routing_NLK = random_routing(policy, 30)
    with torch.no_grad():
        whole_RH = policy.forward_packed(ids_N, lengths, routing_NLK).hidden_NH[rows_R]
        narrow_RH = policy.forward_packed(ids_N, lengths, routing_NLK, rows_R=rows_R).hidden_NH
    assert torch.equal(narrow_RH, whole_RH)
    with pytest.raises(RoutingError):
        policy.forward_packed(ids_N, lengths, routing_NLK[rows_R], rows_R=rows_R)


def test_gradients_are_those_of_hugging_faces_forward():
    """Of every tensor, with all rows and with some; the reference is torch's autograd through the stock modules."""
    for overrides in (
        {},
        {"mlp_only_layers": [1], "attention_bias": True, "tie_word_embeddings": False, "norm_topk_prob": False},
    ):
        policy = small_policy(**overrides)
        ids_N, rows_R, lengths = random_ids(150), torch.arange(1, 150, 3), [80, 1, 69]
        upstream_R = torch.randn(len(rows_R), generator=torch.Generator().manual_seed(1)) / 64
        _, found = packed_gradients(policy, ids_N, lengths, rows_R=rows_R, upstream_R=upstream_R)
        policy.hf.requires_grad_(True)
        logits = torch.cat([policy.hf(ids[None]).logits[0] for ids in ids_N.split(lengths)])[rows_R] / 0.9
        chosen = logits.log_softmax(-1).gather(-1, ids_N[rows_R][:, None])[:, 0]
        torch.autograd.backward(chosen, upstream_R)
        for name, parameter in policy.parameters().items():
            torch.testing.assert_close(
                found[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
