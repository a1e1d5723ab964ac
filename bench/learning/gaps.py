"""How far the trainer's log-probs are from the sampler's, with and without routing replay, and where experts differ.

    d = log pi (trainer) - q (sampler, recorded), of the same weights

The trainer's side is the product's own (``actor_step.logprobs`` under ``train.replay_routing``); an expert is
*flipped* where the trainer's router, left free, chooses another set of experts than the sampler recorded.

Shapes: R rows, L mixture-of-experts layers, K experts per token, T sampled tokens of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from t1actors.config import TrainConfig
from t1actors.models.policy import Policy
from t1actors.train.actor_step import logprobs
from t1actors.train.batch import Batch, micro_batches
from t1actors.train.exactness import exact
from t1actors.train.packing import pack


@dataclass(frozen=True)
class Gaps:
    """|d| of every sampled token, float64, routers free and replayed; whether a token has a flipped expert in some layer of
    the row that predicts it."""

    free_T: npt.NDArray[np.float64]
    replayed_T: npt.NDArray[np.float64]
    flipped_T: npt.NDArray[np.bool_]


def flipped(recorded_RLK: torch.Tensor, chosen_RLK: torch.Tensor) -> torch.Tensor:
    """(R,): the sets of experts differ in some layer. The order of a set means nothing."""
    return (recorded_RLK.sort(dim=-1).values != chosen_RLK.sort(dim=-1).values).any(dim=-1).any(dim=-1)


def gaps(policy: Policy, batch: Batch, config: TrainConfig) -> Gaps:
    """Of a batch that the policy's weights sampled."""
    free_T, replayed_T = np.zeros(batch.sampled), np.zeros(batch.sampled)
    flipped_T = np.zeros(batch.sampled, dtype=bool)
    with exact(), torch.no_grad():
        for places in micro_batches(batch, range(len(batch.trials)), config.micro_batch_ids):
            micro = pack(batch, places)
            for line_T, replay in ((free_T, False), (replayed_T, True)):
                logprob_n, _ = logprobs(policy, micro, batch, replace(config, replay_routing=replay))
                line_T[micro.tokens_n] = logprob_n.numpy()
            chosen_RLK = policy.forward_packed(micro.ids_R, micro.lengths).routing_NLK
            flipped_T[micro.tokens_n] = flipped(micro.routing_RLK, chosen_RLK)[micro.rows_n].numpy()
    q_T = batch.sampler_logprobs_T.astype(np.float64)
    return Gaps(np.abs(free_T - q_T), np.abs(replayed_T - q_T), flipped_T)
