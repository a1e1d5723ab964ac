"""A PPO step whose ratio divides by the sampler's recorded q: what the product does not do, and many trainers do.

    ratio = exp(log pi_t - q)

Guarantees: on an engine whose q are the trainer's log-probs it is the product's ``actor_step`` at staleness 0 up to
float rounding: the same minibatches, losses, clip and optimizer. With streams that are not aligned it shows what that
costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from t1actors.config import TrainConfig
from t1actors.models.policy import Policy
from t1actors.train.actor_step import advantages, logprobs
from t1actors.train.batch import Batch, micro_batches, minibatches
from t1actors.train.errors import NonFiniteError
from t1actors.train.exactness import exact
from t1actors.train.losses import kl_estimate, policy_terms
from t1actors.train.packing import pack
from t1actors.train.state import TrainerState
from t1actors.train.trainer import Trainer


@dataclass(frozen=True)
class SamplerRatioStep:
    """``kl``, ``clip_share`` and ``ratio_max`` as in ``ActorReport``: over every token in the pass that trains it;
    ``first_kl`` is over the first update alone, before anything moved. ``refused`` counts updates whose gradient the trainer
    would not apply, because it left the range of exact sums; such an update is measured and left out."""

    state: TrainerState
    kl: float
    first_kl: float
    clip_share: float
    ratio_max: float
    refused: int


def sampler_ratio_step(
    network: Policy, state: TrainerState, batch: Batch, config: TrainConfig, *, seed: int, step: int
) -> SamplerRatioStep:
    """One epoch of the actor with batch rewards as advantages (whitened where the configuration says so), no critic."""
    actor = config.actor
    q_T = torch.from_numpy(batch.sampler_logprobs_T)
    advantages_T = torch.from_numpy(
        advantages(batch, np.zeros(batch.sampled, dtype=np.float32), config).astype(np.float32)
    )
    kls: list[list[torch.Tensor]] = []
    ratios: list[torch.Tensor] = []
    clipped: list[torch.Tensor] = []
    refused = 0
    with exact():
        trainer = Trainer(network, state, actor, what=f"step {step}, actor against the sampler's q")
        for places in minibatches(batch, actor.minibatches, seed=seed, step=step, epoch=0, part="actor"):
            trainer.begin(sum(batch.trials[place].sampled for place in places))
            kls.append([])
            usable = True
            for micro in (pack(batch, m) for m in micro_batches(batch, places, config.micro_batch_ids)):
                current_n, _ = logprobs(network, micro, batch, config, trainer.sums)
                tokens_n = torch.from_numpy(micro.tokens_n)
                terms = policy_terms(current_n, q_T[tokens_n], advantages_T[tokens_n], clip=actor.clip)
                if usable:
                    usable = _done(trainer.backward, terms.loss_n)
                kls[-1].append(kl_estimate((current_n.detach() - q_T[tokens_n]).double()))
                ratios.append(terms.ratio_n)
                clipped.append(terms.clipped_n)
            usable = usable and _done(trainer.apply)
            refused += not usable
        after = trainer.state()
    return SamplerRatioStep(
        state=after,
        kl=float(torch.cat([kl_n for update in kls for kl_n in update]).mean()),
        first_kl=float(torch.cat(kls[0]).mean()),
        clip_share=float(torch.cat(clipped).double().mean()),
        ratio_max=float(torch.cat(ratios).max()),
        refused=refused,
    )


def _done(act: Callable[..., object], *arguments: object) -> bool:
    """Whether the trainer did it."""
    try:
        act(*arguments)
    except NonFiniteError:
        return False
    return True
