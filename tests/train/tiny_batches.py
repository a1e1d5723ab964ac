"""A policy of a few thousand parameters and trials that it "sampled": real log-probs and routing, arbitrary ids."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

from t1actors.config import ActorConfig, CriticConfig, ModelConfig, TrainConfig
from t1actors.models.policy import Policy, new_policy
from t1actors.models.value import ValueModel
from t1actors.tito.record import TokenSpan, TrajectoryRecord, chunk_of
from t1actors.train.batch import Batch
from t1actors.train.networks import architecture_of, geometry_of, working_weights
from t1actors.train.state import TrainerState

VOCABULARY = 24
MODEL = ModelConfig()
TRAIN = TrainConfig(
    micro_batch_ids=64,
    critic=CriticConfig(learning_rate=1e-2, epochs=2, minibatches=2, loss_scale=25.0),
    actor=ActorConfig(learning_rate=1e-2, minibatches=2),
)


def with_actor(config: TrainConfig = TRAIN, **changes) -> TrainConfig:
    return replace(config, actor=replace(config.actor, **changes))


def with_critic(config: TrainConfig = TRAIN, **changes) -> TrainConfig:
    return replace(config, critic=replace(config.critic, **changes))


def tiny_policy(seed: int = 0, *, dtype: torch.dtype = torch.float32) -> Policy:
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    return new_policy(config, seed=seed, dtype=dtype)


def policy_state(policy: Policy) -> TrainerState:
    return TrainerState.fresh(architecture_of(policy.hf.config), policy.weights())


def critic_state(policy: Policy) -> tuple[ValueModel, TrainerState]:
    critic = ValueModel.from_policy(policy)
    return critic, TrainerState.fresh(architecture_of(critic.config), critic.weights())


def record(
    policy: Policy, trial: str, index: int, *, seed: int, temperature: float = 1.0, turns: int = 2, chunks: int = 1
) -> TrajectoryRecord:
    """A trial of ``turns`` turns a chunk, sampled by the policy's present weights: q and routing are its own."""
    draw = random.Random(seed)
    version = policy.digest()
    made = []
    for _ in range(chunks):
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for _ in range(turns):
            ids += [draw.randrange(VOCABULARY) for _ in range(draw.randint(2, 5))]
            start = len(ids)
            ids += [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 4))]
            spans.append((start, len(ids)))
        mask = np.zeros(len(ids), dtype=np.uint8)
        for start, end in spans:
            mask[start:end] = 1
        rows = np.flatnonzero(mask[1:])
        with torch.no_grad():
            forwarded = policy.forward_packed(torch.tensor(ids[:-1]), [len(ids) - 1])
            logprob, _ = policy.logprobs(
                forwarded.hidden_NH[torch.from_numpy(rows)], torch.tensor(ids)[rows + 1], temperature=temperature
            )
        logprobs = np.zeros(len(ids), dtype=np.float32)
        logprobs[rows + 1] = logprob.numpy()
        made.append(
            chunk_of(
                ids_N=np.array(ids, dtype=np.int32),
                mask_N=mask,
                logprobs_N=logprobs,
                routing_RLK=forwarded.routing_NLK.numpy(),
                versions=tuple(TokenSpan(version=version, start=start, end=end) for start, end in spans),
                turns=tuple(spans),
                geometry=geometry_of(policy),
            )
        )
    return TrajectoryRecord(trial=trial, index=index, task="task", temperature=temperature, chunks=tuple(made))


def batch_of(policy: Policy, count: int = 6, *, seed: int = 0, temperature: float = 1.0, chunks: int = 1) -> Batch:
    draw = random.Random(1000 + seed)
    items = [
        (
            record(policy, f"s0.t{n}", n, seed=seed * 100 + n, temperature=temperature, chunks=chunks),
            draw.randrange(0, 20) / 20,
        )
        for n in range(count)
    ]
    return Batch.of(items, geometry_of(policy))


def weights_now(policy: Policy, state: TrainerState) -> dict[str, torch.Tensor]:
    return working_weights(policy, state.weights)
