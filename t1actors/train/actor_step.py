"""The actor's part of a step: PPO against the behaviour version (T1 sections 4, 5 and 7).

    ratio = exp(log pi_t - log pi_b): pi_t the trainer's weights now, pi_b the version recorded for the token, run from that
    version's weights. Both by this trainer, in the same slabs, with the same replayed routing, at the sampling temperature.

Pure: a function of (state, behaviour weights, batch, V_old, configuration, seed, step); the network is scratch. What the
sampler recorded as log-prob decides nothing: it serves the engine gap alone.

Log pi at the step's start is taken where it is cheapest without another bit: a token of the first update from the update's
own forward pass, the others from a pass without gradient over the slabs that train them; and a token sampled by the current
version needs no pass of its own for log pi_b. One slab, one result: the same weights give the same bits with and without
gradient.

Several processes may compute a step together (``ranks``): each a share of every minibatch, and after every update all know
everything of its tokens. How many there are changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from t1actors.config import TrainConfig
from t1actors.models.checkpoint import weights_digest
from t1actors.models.gradients import Coarsest, Gradients
from t1actors.models.policy import Policy
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
from t1actors.train.errors import TrainError
from t1actors.train.exactness import exact
from t1actors.train.inspection import ActorUpdateView, Inspect
from t1actors.train.losses import kl_estimate, policy_terms
from t1actors.train.networks import version_of, working_weights
from t1actors.train.optimizer import global_norm
from t1actors.train.packing import MicroBatch, pack
from t1actors.train.ranks import ALONE, Ranks, divided
from t1actors.train.returns import Floats, batch_credit, whiten
from t1actors.train.state import Tensors, TrainerState
from t1actors.train.trainer import Applied, Trainer
from t1actors.train.updates import UpdateLosses

TOKEN_COLUMNS = ("behaviour_logprob", "current_logprob", "advantage", "value", "clipped")


@dataclass(frozen=True)
class Gap:
    """|log pi_t - q| at the step's start over all sampled tokens, and its two parts (their absolute values don't add up)."""

    total_mean: float
    total_max: float
    movement_mean: float
    movement_max: float
    engine_mean: float
    engine_max: float


@dataclass(frozen=True)
class ActorReport:
    """What a step of the actor measured, and the digest of every level (log-probs in nats)."""

    weights_before: str
    weights_after: str
    optimizer_after: str
    old_logprobs_digest: str
    loss: float
    """Mean over the updates."""
    losses: tuple[float, ...]
    loss_digest: str
    gradient_digest: str
    gradient_norm: float
    """Mean over the updates, before clipping."""
    coarsest: Coarsest
    """Over all updates and tensors."""
    gap: Gap
    ratio_mean: float
    """This and the next three are over every token of every update, in the pass that trains it."""
    ratio_max: float
    clip_share: float
    """Share of tokens at which the clip decides the loss, so that they give no gradient."""
    kl: float
    entropy: float
    """Mean at the step's start."""
    tokens: npt.NDArray[np.float32]
    """(T, 5), columns ``TOKEN_COLUMNS``; ``clipped`` of the last epoch."""
    detail: PartDetail


@dataclass(frozen=True)
class ActorResult:
    """``weights`` are the canonical weights of the new version, in the training dtype."""

    state: TrainerState
    weights: Tensors
    report: ActorReport


@dataclass
class _Streams:
    """Per-token streams of the batch as a step fills them; ``current_T`` and ``entropy_T`` are of the step's start,
    ``trained_T`` is the log-prob in the pass that trained the token last."""

    behaviour_T: npt.NDArray[np.float32]
    current_T: npt.NDArray[np.float32]
    entropy_T: npt.NDArray[np.float32]
    clipped_T: npt.NDArray[np.float32]
    trained_T: npt.NDArray[np.float32]


def advantages(batch: Batch, values_T: npt.NDArray[np.float32], config: TrainConfig) -> Floats:
    """Over the batch's T sampled tokens, whitened once over the whole batch when configured."""
    advantages_T, _ = batch_credit(
        batch.chunk_rewards, batch.chunk_sampled, values_T, gamma=config.gamma, lam=config.lam
    )
    return whiten(advantages_T) if config.actor.whiten_advantages else advantages_T


def staleness(batch: Batch, version_index: Mapping[str, int], trained_index: int) -> tuple[str, int]:
    """(oldest behaviour version in the batch, index of the weights being trained minus its index)."""
    oldest = min(batch.versions, key=lambda version: version_index[version])
    return oldest, trained_index - version_index[oldest]


def actor_step(
    network: Policy,
    state: TrainerState,
    behaviours: Mapping[str, Tensors],
    batch: Batch,
    values_T: npt.NDArray[np.float32],
    config: TrainConfig,
    *,
    seed: int,
    step: int,
    inspect: Inspect | None = None,
    ranks: Ranks = ALONE,
) -> ActorResult:
    """The actor after ``epochs`` x ``minibatches`` updates, the same on all ranks.

    Args:
        network: scratch, of the state's architecture; its weights on return are those after the step.
        state: masters and moments before the step; not changed.
        behaviours: version -> weights, for every version in the batch other than the state's own.
        batch: T sampled tokens.
        values_T: V_old, float32, from ``critic_step.estimate_values``.
        seed, step: with the trials' index they decide the minibatches, nothing else.
        inspect: called with every update before it is made; it decides nothing (``train.inspection``).
        ranks: the processes that compute the step together, all called with the same arguments.

    Raises:
        TrainError: a behaviour version's weights are missing, or are not what the version names.
        NonFiniteError: a gradient is not finite.
        RanksError: another rank died, failed or is stuck.
    """
    actor = config.actor
    advantages_T = torch.from_numpy(advantages(batch, values_T, config).astype(np.float32))
    losses = UpdateLosses(batch)
    applied: list[Applied] = []
    ratio_ET, clipped_ET, kl_ET = (np.zeros((actor.epochs, batch.sampled), dtype=np.float32) for _ in range(3))

    def slabs(epoch: int) -> list[tuple[tuple[int, ...], list[MicroBatch]]]:
        cut = minibatches(batch, actor.minibatches, seed=seed, step=step, epoch=epoch, part="actor")
        limit = config.micro_batch_ids
        return [
            (places, [pack(batch, m) for m in micro_batches(batch, divided(batch, places, ranks), limit)])
            for places in cut
        ]

    with exact():
        before = version_of(network, state)
        own_T = np.array([version == before for version in batch.versions])[batch.version_T]
        first = slabs(0)
        streams = _Streams(*(np.zeros(batch.sampled, dtype=np.float32) for _ in range(5)))
        _behaviour_logprobs(network, behaviours, before, batch, [m for _, ms in first for m in ms], streams, config)
        trainer = Trainer(network, state, actor, what=f"step {step}, actor")
        with torch.no_grad():
            for micro in (m for _, micros in first[1:] for m in micros):
                _note_start(streams, micro, own_T, *logprobs(network, micro, batch, config))
        for epoch in range(actor.epochs):
            for number, (places, micros) in enumerate(first if epoch == 0 else slabs(epoch)):
                trainer.begin(losses.begin(places))
                for micro in micros:
                    current_n, entropy_n = logprobs(network, micro, batch, config, trainer.sums)
                    if epoch == 0 and number == 0:
                        _note_start(streams, micro, own_T, current_n.detach(), entropy_n)
                    behaviour_n = torch.from_numpy(streams.behaviour_T[micro.tokens_n])
                    terms = policy_terms(
                        current_n, behaviour_n, advantages_T[torch.from_numpy(micro.tokens_n)], clip=actor.clip
                    )
                    losses.record(micro.tokens_n, terms.loss_n)
                    streams.trained_T[micro.tokens_n] = current_n.detach().numpy()
                    streams.clipped_T[micro.tokens_n] = terms.clipped_n.numpy()
                    ratio_ET[epoch, micro.tokens_n] = terms.ratio_n.numpy()
                    clipped_ET[epoch, micro.tokens_n] = terms.clipped_n.numpy()
                    kl_ET[epoch, micro.tokens_n] = kl_estimate(current_n.detach() - behaviour_n).numpy()
                    trainer.backward(terms.loss_n)
                ranks.merge(trainer.sums)
                found = [losses.loss_T, streams.trained_T, streams.clipped_T]
                found += [ratio_ET[epoch], clipped_ET[epoch], kl_ET[epoch]]
                if epoch == 0:
                    found += [streams.behaviour_T, streams.current_T, streams.entropy_T]
                ranks.share(found, [micro.tokens_n for micro in micros], batch.tokens_of(places))
                if inspect is not None:
                    tokens_n, gradients = batch.tokens_of(places), trainer.gradients(checked=False)
                    inspect(
                        ActorUpdateView(
                            step=step,
                            update=len(applied) + 1,
                            epoch=epoch,
                            batch=batch,
                            places=places,
                            tokens_n=tokens_n,
                            current_n=streams.trained_T[tokens_n],
                            behaviour_n=streams.behaviour_T[tokens_n],
                            sampler_n=batch.sampler_logprobs_T[tokens_n],
                            advantage_n=advantages_T.numpy()[tokens_n],
                            value_n=values_T[tokens_n],
                            loss_n=losses.of(tokens_n),
                            clipped_n=streams.clipped_T[tokens_n] == 1,
                            gradients=gradients,
                            gradient_norm=global_norm(gradients.values()),
                        )
                    )
                losses.finish()
                applied.append(trainer.apply())
        after = trainer.state()
        working = working_weights(network, after.weights)
    report = ActorReport(
        weights_before=before,
        weights_after=weights_digest(working),
        optimizer_after=after.optimizer_digest(),
        old_logprobs_digest=array_digest(streams.behaviour_T),
        loss=float(np.mean(losses.totals)),
        losses=tuple(losses.totals),
        loss_digest=losses_digest(losses.totals),
        gradient_digest=gradient_digest(a.gradients for a in applied),
        gradient_norm=float(np.mean([a.gradient_norm for a in applied])),
        coarsest=Coarsest.of(a.coarsest for a in applied),
        gap=gap(streams.current_T, streams.behaviour_T, batch.sampler_logprobs_T),
        ratio_mean=float(ratio_ET.mean(dtype=np.float64)),
        ratio_max=float(ratio_ET.max()),
        clip_share=float(clipped_ET.mean(dtype=np.float64)),
        kl=float(kl_ET.mean(dtype=np.float64)),
        entropy=float(streams.entropy_T.mean(dtype=np.float64)),
        tokens=np.stack(
            [streams.behaviour_T, streams.current_T, advantages_T.numpy(), values_T, streams.clipped_T], axis=1
        ),
        detail=PartDetail(
            tensors=tuple(sorted(after.weights)),
            trials=trial_digests(streams.behaviour_T, batch),
            updates=tuple(
                UpdateDetail(losses=trials, gradients=short(a.gradients))
                for trials, a in zip(losses.trial_digests, applied, strict=True)
            ),
            weights=short(tensor_digests(working)),
            first=short(tensor_digests(after.first)),
            second=short(tensor_digests(after.second)),
        ),
    )
    return ActorResult(after, working, report)


def logprobs(
    network: Policy, micro: MicroBatch, batch: Batch, config: TrainConfig, gradients: Gradients | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-prob, entropy) of a slab's sampled tokens under the network's weights, at the batch's temperature."""
    routing = micro.routing_RLK if config.replay_routing else None
    rows_n = micro.rows_n
    forwarded = network.forward_packed(
        micro.ids_R, micro.lengths, routing, rows_R=rows_n, gradients=gradients, recompute=config.recompute_layers
    )
    return network.logprobs(
        forwarded.hidden_NH, micro.targets_n, temperature=batch.temperature, gradients=gradients, rows_R=rows_n
    )


def gap(
    current_T: npt.NDArray[np.float32], behaviour_T: npt.NDArray[np.float32], sampler_T: npt.NDArray[np.float32]
) -> Gap:
    """Over the whole batch at once: dividing by micro-batches would inflate it (T1 section 5)."""
    current, behaviour, sampler = (stream.astype(np.float64) for stream in (current_T, behaviour_T, sampler_T))
    total, movement, engine = np.abs(current - sampler), np.abs(current - behaviour), np.abs(behaviour - sampler)
    return Gap(
        total_mean=float(total.mean()),
        total_max=float(total.max()),
        movement_mean=float(movement.mean()),
        movement_max=float(movement.max()),
        engine_mean=float(engine.mean()),
        engine_max=float(engine.max()),
    )


def _behaviour_logprobs(
    network: Policy,
    behaviours: Mapping[str, Tensors],
    own_version: str,
    batch: Batch,
    micros: Iterable[MicroBatch],
    streams: _Streams,
    config: TrainConfig,
) -> None:
    """One pass a version over the slabs that hold its tokens; the state's own version is left to the step's own passes."""
    micros = list(micros)
    for place, version in enumerate(batch.versions):
        if version == own_version:
            continue
        if version not in behaviours:
            trial = batch.trial_of_token(int(np.argmax(batch.version_T == place))).trial
            raise TrainError(f"trial {trial} was sampled by version {version[:16]}…, whose weights were not given")
        if (found := weights_digest(behaviours[version])) != version:
            raise TrainError(f"the weights given for version {version[:16]}… have digest {found[:16]}…")
        network.load_weights(behaviours[version])
        with torch.no_grad():
            for micro in micros:
                mine_n = batch.version_T[micro.tokens_n] == place
                if mine_n.any():
                    logprob_n, _ = logprobs(network, micro, batch, config)
                    streams.behaviour_T[micro.tokens_n[mine_n]] = logprob_n.numpy()[mine_n]


def _note_start(
    streams: _Streams,
    micro: MicroBatch,
    own_T: npt.NDArray[np.bool_],
    logprob_n: torch.Tensor,
    entropy_n: torch.Tensor,
) -> None:
    """Log pi_t and entropy at the step's start; they are log pi_b too where the current version sampled."""
    streams.current_T[micro.tokens_n] = logprob_n.numpy()
    streams.entropy_T[micro.tokens_n] = entropy_n.numpy()
    own_n = own_T[micro.tokens_n]
    streams.behaviour_T[micro.tokens_n[own_n]] = logprob_n.numpy()[own_n]
