import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from t1kernels.choice import default_kernels

from t1actors.config import ConfigError, resolve
from t1actors.engine.core import EngineCore, Job
from t1actors.engine.interface import GenerateRequest
from t1actors.engine.sampling import uniforms
from tests.models.small import small_policy


class Drawn:
    def __init__(self, tokens, logprobs, entropies):
        self.tokens_B, self.logprobs_B, self.entropies_B = tokens.numpy(), logprobs.numpy(), entropies.numpy()


def draw(logits_BV, temperatures_B, uniforms_B):
    return Drawn(*default_kernels().draw(logits_BV, torch.from_numpy(temperatures_B), torch.from_numpy(uniforms_B)))


def seeds(*values):
    return np.array(values, dtype=np.uint64)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31)), min_size=1, max_size=8))
def test_a_number_belongs_to_its_seed_and_position_not_to_the_batch(pairs):
    seeds_B, positions_B = seeds(*(s for s, _ in pairs)), np.array([p for _, p in pairs])
    together = uniforms(seeds_B, positions_B)
    assert ((together >= 0) & (together < 1)).all()
    for i, (seed, position) in enumerate(pairs):
        assert uniforms(seeds(seed), np.array([position]))[0] == together[i]


def test_numbers_are_uniform_and_unrelated_across_positions_and_seeds():
    count = 20_000
    by_position = uniforms(np.full(count, 7, np.uint64), np.arange(count))
    by_seed = uniforms(np.arange(count, dtype=np.uint64), np.full(count, 3))
    for sample in (by_position, by_seed):
        counts, _ = np.histogram(sample, bins=20, range=(0, 1))
        chi_squared = ((counts - count / 20) ** 2 / (count / 20)).sum()
        assert chi_squared < 50  # 19 degrees of freedom: beyond the 99.99 % quantile
        assert abs(np.corrcoef(sample[1:], sample[:-1])[0, 1]) < 0.03
    assert abs(np.corrcoef(by_position, by_seed)[0, 1]) < 0.03


def test_tokens_come_with_the_frequency_of_their_probability():
    count = 20_000
    probabilities = torch.tensor([0.5, 0.0, 0.25, 0.2, 0.05])
    logits_BV = probabilities.log().expand(count, 5)
    drawn = draw(logits_BV, np.ones(count, np.float32), uniforms(np.full(count, 5, np.uint64), np.arange(count)))
    frequency = np.bincount(drawn.tokens_B, minlength=5) / count
    assert frequency[1] == 0, "probability zero is never drawn"
    np.testing.assert_allclose(frequency, probabilities, atol=0.015)


@settings(deadline=None)
@given(seed=st.integers(0, 999), temperature=st.floats(0.1, 4.0), vocabulary=st.integers(1, 50))
def test_logprobs_and_entropies_are_those_of_the_distribution_drawn_from(seed, temperature, vocabulary):
    logits_BV = torch.randn(6, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4
    temperatures_B = np.full(6, temperature, np.float32)
    drawn = draw(logits_BV, temperatures_B, uniforms(np.full(6, seed, np.uint64), np.arange(6)))
    wanted = torch.log_softmax(logits_BV.double() / float(temperatures_B[0]), dim=-1)
    tokens_B1 = torch.from_numpy(drawn.tokens_B)[:, None]
    np.testing.assert_allclose(drawn.logprobs_B, wanted.gather(-1, tokens_B1)[:, 0], rtol=1e-4, atol=1e-4)
    entropy = torch.special.entr(wanted.exp()).sum(-1)
    np.testing.assert_allclose(drawn.entropies_B, entropy, rtol=1e-3, atol=1e-4)


def test_the_ends_of_the_unit_interval_give_the_first_and_last_possible_token():
    logits_BV = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0], [-torch.inf, 3.0], [1.0, -torch.inf]])
    drawn = draw(logits_BV.clamp_min(-1e9), np.ones(4, np.float32), np.array([1 - 2.0**-52, 0.0, 1 - 2.0**-52, 0.0]))
    assert drawn.tokens_B.tolist() == [0, 1, 1, 0]


def test_greedy_and_sampled_rows_share_a_batch():
    logits_BV = torch.tensor([[0.0, 5.0, 1.0]] * 2)
    drawn = draw(logits_BV, np.array([0.0, 2.0], np.float32), np.array([0.0, 0.0]))
    assert drawn.tokens_B.tolist() == [1, 0]
    at_one = torch.log_softmax(logits_BV[0], dim=-1)
    at_two = torch.log_softmax(logits_BV[1] / 2, dim=-1)
    np.testing.assert_allclose(drawn.logprobs_B, [at_one[1], at_two[0]], rtol=1e-5)


def test_every_word_can_be_drawn_and_the_trainer_normalises_over_the_same_ones():
    """Three words at top-p 0.8 (fault T13): a cut distribution cannot be asked for, so q is that of the whole vocabulary and
    the trainer's ratio to it is exactly 1."""
    policy = small_policy(vocab_size=3)
    core = EngineCore(policy, max_live_sequences=1, max_ids=200)
    values = {"sequence": "s", "ids": (1,), "max_new_tokens": 150, "temperature": 1.0, "seed": 3, "stop_ids": ()}
    job = Job(GenerateRequest(request_id="s/0", **values), 0.0)
    core.submit(job)
    while job.result is None:
        core.step()
    ids_N = torch.tensor([1, *job.result.sampled_ids])
    with torch.no_grad():
        hidden_NH = policy.forward_packed(ids_N[:-1], [len(ids_N) - 1], job.result.routing_RLK).hidden_NH
        trainer_N, _ = policy.logprobs(hidden_NH, ids_N[1:], temperature=1.0)
        falling_N3, words_N3 = torch.log_softmax(policy.logits(hidden_NH), -1).sort(-1, descending=True)
    before_N3 = falling_N3.exp().cumsum(-1) - falling_N3.exp()
    cut_N = ((before_N3 >= 0.8) & (words_N3 == ids_N[1:, None])).any(-1)
    assert cut_N.any(), "a word that top-p 0.8 would cut must be among the drawn"
    ratio_N = (trainer_N - torch.from_numpy(job.result.logprobs)).exp()
    assert torch.equal(ratio_N, torch.ones(150))

    with pytest.raises(ConfigError, match=r"unknown key rollout\.top_p"):
        resolve(sets=["rollout.top_p=0.8"])
    with pytest.raises(TypeError, match="top_p"):
        GenerateRequest(request_id="s/1", top_p=0.8, **values)
