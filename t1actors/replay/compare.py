"""A step run again against what the log says of it: every level's digest, and the place of the first difference.

A level is judged by its full digest. The place comes from the recorded short digests and, when they are still there,
from the per-token streams; without either the level alone is named.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from t1actors.config import TrainConfig
from t1actors.events import ActorUpdated, CriticUpdated, Tensor
from t1actors.payloads import BlobError, Blobs, unpack, unpack_array
from t1actors.replay.chain import StepRun
from t1actors.replay.inputs import RunInputs, StepInputs
from t1actors.replay.report import Difference, Level
from t1actors.tito.stored import digest as record_digest
from t1actors.train.actor_step import TOKEN_COLUMNS, ActorReport
from t1actors.train.batch import Batch, minibatches
from t1actors.train.critic_step import CriticReport
from t1actors.train.digests import PartDetail, decode_detail, first_difference

Stream = npt.NDArray[np.float32]


def levels_of(recorded: StepInputs, run: StepRun) -> tuple[Level, ...]:
    """Every level that both sides have, in order."""
    levels: list[Level] = []
    if recorded.sealed is not None:
        levels.append(Level("batch", "batch", recorded.sealed.digest, run.batch.digest))
    if recorded.values is not None:
        levels.append(Level("critic", "values", recorded.values.values_digest, run.values.digest))
    if recorded.critic is not None and run.critic is not None:
        levels += _part_levels("critic", recorded.critic, run.critic.report)
    if recorded.actor is not None and run.actor is not None:
        part = _part_levels("actor", recorded.actor, run.actor.report)
        old = run.actor.report.old_logprobs_digest
        levels += [part[0], Level("actor", "old log-probs", recorded.actor.old_logprobs_digest, old), *part[1:]]
    return tuple(levels)


def _part_levels(part: str, recorded: CriticUpdated | ActorUpdated, now: CriticReport | ActorReport) -> list[Level]:
    return [
        Level(part, "weights before", recorded.weights_before, now.weights_before),
        Level(part, "loss", recorded.loss_digest, now.loss_digest),
        Level(part, "gradients", recorded.gradient_digest, now.gradient_digest),
        Level(part, "weights", recorded.weights_after, now.weights_after),
        Level(part, "optimizer", recorded.optimizer_after, now.optimizer_after),
    ]


def locate(
    inputs: RunInputs, blobs: Blobs, run: StepRun, levels: tuple[Level, ...], train: TrainConfig
) -> Difference | None:
    """The first difference of the step, None when every level is equal."""
    first = next((level for level in levels if not level.equal), None)
    if first is None:
        return None
    recorded = inputs.step(run.step)
    if first.part == "batch":
        return _locate_batch(recorded, run)
    if first.level == "values":
        detail = _detail(recorded.critic, blobs)
        stream = _values_stream(recorded, blobs)
        return _locate_trial(run, first, run.values.trial_digests, detail, stream, run.values.values_T)
    event = recorded.critic if first.part == "critic" else recorded.actor
    result = run.critic if first.part == "critic" else run.actor
    assert event is not None  # else the level would not be there
    assert result is not None
    detail, now = _detail(event, blobs), result.report.detail
    if first.level == "old log-probs" and run.actor is not None:
        stream = _old_stream(recorded, blobs)
        return _locate_trial(run, first, now.trials, detail, stream, run.actor.report.tokens[:, 0])
    if detail is None or first.level == "weights before":
        return Difference(run.step, first.name)
    if first.level in ("loss", "gradients"):
        cut = train.critic if first.part == "critic" else train.actor
        places = [
            minibatch
            for epoch in range(cut.epochs)
            for minibatch in minibatches(
                run.batch,
                cut.minibatches,
                seed=inputs.config.run.seed,
                step=run.step,
                epoch=epoch,
                part=first.part,
            )
        ]
        return _locate_update(run.step, first, detail, now, run.batch, places)
    return _locate_tensor(run.step, first, detail, now)


def _locate_batch(recorded: StepInputs, run: StepRun) -> Difference:
    assert recorded.sealed is not None
    now = {t.trial: t for t in run.batch.trials}
    for item in recorded.sealed.items:
        trial = now.pop(item.trial, None)
        if trial is None:
            return Difference(run.step, "batch", trial=item.trial, note="is not in the batch now")
        if record_digest(trial.record) != item.trajectory_digest:
            return Difference(run.step, "batch", trial=item.trial, note="its trajectory is another")
        if trial.reward != item.reward:
            note = f"its reward was {item.reward:g} and is {trial.reward:g}"
            return Difference(run.step, "batch", trial=item.trial, note=note)
    return Difference(run.step, "batch", trial=next(iter(now), ""), note="was not in the batch" if now else "")


def _locate_trial(
    run: StepRun, level: Level, now: bytes, detail: PartDetail | None, recorded: Stream | None, stream: Stream
) -> Difference:
    """The first trial whose stream differs, and the token when the recorded stream is still there."""
    if recorded is not None and recorded.shape == stream.shape:
        apart = np.flatnonzero(recorded.view(np.uint32) != np.ascontiguousarray(stream).view(np.uint32))
        if apart.size:
            token = int(apart[0])
            trial = run.batch.trial_of_token(token)
            note = f"{recorded[token]:.9g} was recorded, now {stream[token]:.9g}; {apart.size} tokens differ"
            return Difference(run.step, level.name, trial=trial.trial, token=token - trial.first, note=note)
    place = first_difference(detail.trials, now) if detail is not None else None
    if place is None or place >= len(run.batch.trials):
        return Difference(run.step, level.name)
    return Difference(run.step, level.name, trial=run.batch.trials[place].trial)


def _locate_update(
    step: int, level: Level, recorded: PartDetail, now: PartDetail, batch: Batch, places: list[tuple[int, ...]]
) -> Difference:
    """In the order things happened: an update's losses, its gradients, the next update's losses."""
    for number, (before, after) in enumerate(zip(recorded.updates, now.updates, strict=False)):
        trial = first_difference(before.losses, after.losses)
        if trial is not None and trial < len(places[number]):
            name = batch.trials[places[number][trial]].trial
            return Difference(step, f"{level.part} loss", trial=name, update=number + 1)
        tensor = first_difference(before.gradients, after.gradients)
        if tensor is not None:
            name = _tensor(recorded, tensor)
            return Difference(step, f"{level.part} gradients", tensor=name, update=number + 1)
    if len(recorded.updates) != len(now.updates):
        note = f"{len(recorded.updates)} updates were recorded, {len(now.updates)} made now"
        return Difference(step, level.name, note=note)
    return Difference(step, level.name)


def _locate_tensor(step: int, level: Level, recorded: PartDetail, now: PartDetail) -> Difference:
    parts: list[tuple[str, Callable[[PartDetail], bytes]]] = [
        ("", lambda d: d.weights),
        ("first moment", lambda d: d.first),
        ("second moment", lambda d: d.second),
    ]
    for note, part in parts:
        place = first_difference(part(recorded), part(now))
        if place is not None:
            return Difference(step, level.name, tensor=_tensor(recorded, place), note=note)
    return Difference(step, level.name)


def _tensor(detail: PartDetail, place: int) -> str:
    return detail.tensors[place] if place < len(detail.tensors) else ""


def _detail(event: CriticUpdated | ActorUpdated | None, blobs: Blobs) -> PartDetail | None:
    if event is None or event.detail is None:
        return None
    try:
        return decode_detail(unpack(blobs, event.detail))
    except (BlobError, msgspec.MsgspecError):
        return None  # gone, damaged or of a later version of this program: the level's own digest still judges


def _values_stream(recorded: StepInputs, blobs: Blobs) -> Stream | None:
    return None if recorded.values is None else _stream(recorded.values.values, blobs)


def _old_stream(recorded: StepInputs, blobs: Blobs) -> Stream | None:
    tokens = None if recorded.actor is None else _stream(recorded.actor.tokens, blobs)
    if tokens is None or tokens.ndim != 2 or tokens.shape[1] != len(TOKEN_COLUMNS):
        return None
    return np.ascontiguousarray(tokens[:, TOKEN_COLUMNS.index("behaviour_logprob")])


def _stream(tensor: Tensor, blobs: Blobs) -> Stream | None:
    """These streams are a cache for people: gone or damaged, they are done without."""
    try:
        return unpack_array(blobs, tensor).astype(np.float32) if tensor.dtype == "float32" else None
    except BlobError:
        return None
