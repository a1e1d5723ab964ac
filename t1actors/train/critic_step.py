"""The critic's part of a step: values before anything changes, then its update (T1 sections 6 and 7).

Pure: a function of (state, batch, configuration, seed, step); the network is scratch, and with how many others this
process computes it (``ranks``) changes no bit. Routers choose freely. V_old serves the actor's advantages, the critic's
returns and its clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from t1actors.config import TrainConfig
from t1actors.models.checkpoint import weights_digest
from t1actors.models.gradients import Coarsest, Gradients
from t1actors.models.value import ValueModel
from t1actors.train.batch import Batch, micro_batches, minibatches
from t1actors.train.digests import (
    PartDetail,
    UpdateDetail,
    array_digest,
    gradient_digest,
    losses_digest,
    short,
    tensor_digests,
    trial_digests,
)
from t1actors.train.exactness import exact
from t1actors.train.inspection import CriticUpdateView, InspectCritic
from t1actors.train.losses import value_loss
from t1actors.train.networks import load_masters, version_of, working_weights
from t1actors.train.optimizer import global_norm
from t1actors.train.packing import MicroBatch, pack
from t1actors.train.ranks import ALONE, Ranks, divided
from t1actors.train.returns import batch_credit, explained_variance
from t1actors.train.state import TrainerState
from t1actors.train.trainer import Applied, Trainer
from t1actors.train.updates import UpdateLosses


@dataclass(frozen=True)
class Values:
    """V_old over the batch's T sampled tokens; ``trial_digests`` are 8 bytes a trial."""

    values_T: npt.NDArray[np.float32]
    digest: str
    explained_variance: float
    trial_digests: bytes


@dataclass(frozen=True)
class CriticReport:
    """What a step of the critic measured, and the digest of every level."""

    weights_before: str
    weights_after: str
    optimizer_after: str
    loss: float
    """Mean over the updates; with ``loss_scale``."""
    losses: tuple[float, ...]
    loss_digest: str
    gradient_digest: str
    gradient_norm: float
    """Mean over the updates, before clipping."""
    coarsest: Coarsest
    """Over all updates and tensors."""
    explained_variance: float
    """Of V_old, as in ``Values``."""
    detail: PartDetail


@dataclass(frozen=True)
class CriticResult:
    """The critic after the step."""

    state: TrainerState
    report: CriticReport


def estimate_values(
    network: ValueModel, state: TrainerState, batch: Batch, config: TrainConfig, *, ranks: Ranks = ALONE
) -> Values:
    """The values of the state's critic, trials in index order. Raises ``RanksError``."""
    places = tuple(range(len(batch.trials)))
    values_T = np.zeros(batch.sampled, dtype=np.float32)
    with exact(), torch.no_grad():
        load_masters(network, state.weights)
        mine = _slabs(batch, places, config, ranks)
        for micro in mine:
            values_T[micro.tokens_n] = _values(network, micro, config).numpy()
        ranks.share([values_T], [micro.tokens_n for micro in mine], batch.tokens_of(places))
    _, returns_T = batch_credit(batch.chunk_rewards, batch.chunk_sampled, values_T, gamma=config.gamma, lam=config.lam)
    return Values(
        values_T, array_digest(values_T), explained_variance(returns_T, values_T), trial_digests(values_T, batch)
    )


def critic_step(
    network: ValueModel,
    state: TrainerState,
    batch: Batch,
    values_T: npt.NDArray[np.float32],
    config: TrainConfig,
    *,
    seed: int,
    step: int,
    inspect: InspectCritic | None = None,
    ranks: Ranks = ALONE,
) -> CriticResult:
    """The critic after ``epochs`` x ``minibatches`` updates, the same on all ranks. ``inspect`` is called with every update
    before it is made; it decides nothing (``train.inspection``). Raises ``NonFiniteError``, ``RanksError``."""
    critic = config.critic
    _, returns_T = batch_credit(batch.chunk_rewards, batch.chunk_sampled, values_T, gamma=config.gamma, lam=config.lam)
    returns = torch.from_numpy(returns_T.astype(np.float32))
    old = torch.from_numpy(values_T)
    losses = UpdateLosses(batch)
    trained_T = np.zeros(batch.sampled, dtype=np.float32)
    applied: list[Applied] = []
    with exact():
        before = version_of(network, state)
        trainer = Trainer(network, state, critic, what=f"step {step}, critic", loss_scale=critic.loss_scale)
        for epoch in range(critic.epochs):
            for places in minibatches(batch, critic.minibatches, seed=seed, step=step, epoch=epoch, part="critic"):
                trainer.begin(losses.begin(places))
                mine = _slabs(batch, places, config, ranks)
                for micro in mine:
                    value_n = _values(network, micro, config, trainer.sums)
                    tokens_n = torch.from_numpy(micro.tokens_n)
                    loss_n = value_loss(value_n, old[tokens_n], returns[tokens_n], value_clip=critic.value_clip)
                    losses.record(micro.tokens_n, loss_n * critic.loss_scale)
                    trained_T[micro.tokens_n] = value_n.detach().numpy()
                    trainer.backward(loss_n)
                ranks.merge(trainer.sums)
                ranks.share([losses.loss_T, trained_T], [micro.tokens_n for micro in mine], batch.tokens_of(places))
                if inspect is not None:
                    tokens_n, gradients = batch.tokens_of(places), trainer.gradients(checked=False)
                    inspect(
                        CriticUpdateView(
                            step=step,
                            update=len(applied) + 1,
                            epoch=epoch,
                            batch=batch,
                            places=places,
                            tokens_n=tokens_n,
                            value_n=trained_T[tokens_n],
                            old_value_n=values_T[tokens_n],
                            return_n=returns_T[tokens_n].astype(np.float32),
                            value_clip=critic.value_clip,
                            loss_n=losses.of(tokens_n),
                            gradients=gradients,
                            gradient_norm=global_norm(gradients.values()),
                        )
                    )
                losses.finish()
                applied.append(trainer.apply())
        after = trainer.state()
        working = working_weights(network, after.weights)
    report = CriticReport(
        weights_before=before,
        weights_after=weights_digest(working),
        optimizer_after=after.optimizer_digest(),
        loss=float(np.mean(losses.totals)),
        losses=tuple(losses.totals),
        loss_digest=losses_digest(losses.totals),
        gradient_digest=gradient_digest(a.gradients for a in applied),
        gradient_norm=float(np.mean([a.gradient_norm for a in applied])),
        coarsest=Coarsest.of(a.coarsest for a in applied),
        explained_variance=explained_variance(returns_T, values_T),
        detail=PartDetail(
            tensors=tuple(sorted(after.weights)),
            trials=trial_digests(values_T, batch),
            updates=tuple(
                UpdateDetail(losses=trials, gradients=short(a.gradients))
                for trials, a in zip(losses.trial_digests, applied, strict=True)
            ),
            weights=short(tensor_digests(working)),
            first=short(tensor_digests(after.first)),
            second=short(tensor_digests(after.second)),
        ),
    )
    return CriticResult(after, report)


def _slabs(batch: Batch, places: Sequence[int], config: TrainConfig, ranks: Ranks) -> list[MicroBatch]:
    """The micro-batches of the trials at ``places`` that this rank computes."""
    return [pack(batch, part) for part in micro_batches(batch, divided(batch, places, ranks), config.micro_batch_ids)]


def _values(
    network: ValueModel, micro: MicroBatch, config: TrainConfig, gradients: Gradients | None = None
) -> torch.Tensor:
    forwarded = network.forward_packed(
        micro.ids_R, micro.lengths, rows_R=micro.rows_n, gradients=gradients, recompute=config.recompute_layers
    )
    return network.values(forwarded.hidden_NH, gradients=gradients, rows_R=micro.rows_n)
