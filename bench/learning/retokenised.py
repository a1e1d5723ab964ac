"""What a harness that carries text does to a trial: sampled ids become text and then ids again, which may be others.

Three things can be done with the sampler's log-probs q when a turn comes back with other ids, and this module does
all three: compute them again for the new ids (``retokenised``), or keep them by position (``kept_by_position``)
within the turn or through the whole trial. The two latter break the rule that all streams of a trial move by the same
offsets (T1 section 3): a q then stands beside a token that it is not of. ``shifted`` does that on purpose, without
any re-tokenisation.

Nothing in the product does any of this: its harness carries ids, and its ratio never divides by q.

Guarantees: the results are records that ``tito.record.check`` accepts (a broken alignment can't be seen in a record
alone); a trial whose turns are all canonical comes back as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from msgspec import structs

from t1actors.models.policy import Policy
from t1actors.models.tokenizer import Tokenizer
from t1actors.tito.record import Chunk, Geometry, Ids, Logprobs, TokenSpan, TrajectoryRecord, chunk_of

Scope = Literal["turn", "trial"]


def encoded_again(sampled_ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The ids of a turn after a trip through text; the closing <|end|> is no text and stays."""
    body = list(sampled_ids)
    end = [body.pop()] if body and body[-1] == tokenizer.special.end else []
    return tokenizer.encode(tokenizer.decode(body)) + end


def non_canonical_turns(record: TrajectoryRecord, tokenizer: Tokenizer) -> tuple[int, int]:
    """(turns whose ids a trip through text changes, turns)."""
    turns = [ids for chunk in record.chunks for ids in turns_of(chunk)]
    return sum(encoded_again(ids, tokenizer) != ids for ids in turns), len(turns)


def turns_of(chunk: Chunk) -> list[list[int]]:
    """The sampled ids of each turn."""
    ids_N = chunk.arrays().ids_N
    return [ids_N[start:end].tolist() for start, end in chunk.turns]


def retokenised(record: TrajectoryRecord, tokenizer: Tokenizer, policy: Policy, geometry: Geometry) -> TrajectoryRecord:
    """The trial with every turn encoded again; q and routing are what ``policy`` gives for the new ids."""

    def again(chunk: Chunk) -> Chunk:
        old = turns_of(chunk)
        new = [encoded_again(ids, tokenizer) for ids in old]
        return chunk if new == old else with_turns(chunk, new, record.temperature, policy, geometry)

    return structs.replace(record, chunks=tuple(again(chunk) for chunk in record.chunks))


def kept_by_position(
    original: TrajectoryRecord, retokenised_record: TrajectoryRecord, scope: Scope
) -> TrajectoryRecord:
    """The re-tokenised trial with the sampler's own q, kept by position within a turn or through the trial."""
    chunks: list[Chunk] = []
    for old, new in zip(original.chunks, retokenised_record.chunks, strict=True):
        sampled_q = [old.arrays().logprobs_N[start:end].tolist() for start, end in old.turns]
        lengths = [end - start for start, end in new.turns]
        chunks.append(_with_q(new, laid_out(sampled_q, lengths, scope)))
    return structs.replace(retokenised_record, chunks=tuple(chunks))


def shifted(record: TrajectoryRecord) -> TrajectoryRecord:
    """The same ids; every sampled token has the q of the sampled token after it, the last one keeps its own."""

    def moved(chunk: Chunk) -> Chunk:
        q = [q for start, end in chunk.turns for q in chunk.arrays().logprobs_N[start:end].tolist()]
        return _with_q(chunk, [*q[1:], q[-1]])

    return structs.replace(record, chunks=tuple(moved(chunk) for chunk in record.chunks))


def laid_out(sampled_q: Sequence[Sequence[float]], lengths: Sequence[int], scope: Scope) -> list[float]:
    """The q of each turn as turns of other ``lengths`` get it by position. What is too long is cut, what is too short is
    filled up with the last value."""
    if scope == "trial":
        flat = list(itertools.chain.from_iterable(sampled_q))
        return _fitted(flat, sum(lengths))
    return [q for turn, length in zip(sampled_q, lengths, strict=True) for q in _fitted(turn, length)]


def _fitted(q: Sequence[float], length: int) -> list[float]:
    return [*q, *[q[-1]] * (length - len(q))][:length]


def _with_q(chunk: Chunk, sampled_q: Sequence[float]) -> Chunk:
    arrays = chunk.arrays()
    logprobs_N = np.zeros(len(arrays.ids_N), dtype="<f4")
    logprobs_N[arrays.mask_N == 1] = sampled_q
    return structs.replace(chunk, logprobs=logprobs_N.tobytes())


def with_turns(
    chunk: Chunk, new_turns: Sequence[Sequence[int]], temperature: float, policy: Policy, geometry: Geometry
) -> Chunk:
    """The chunk with other ids in its turns, each of the version that sampled the turn. Q and routing are ``policy``'s,
    routers free."""
    arrays = chunk.arrays()
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    versions: list[TokenSpan] = []
    position = 0
    for (start, end), new in zip(chunk.turns, new_turns, strict=True):
        ids += arrays.ids_N[position:start].tolist()
        spans.append((len(ids), len(ids) + len(new)))
        version = next(span.version for span in chunk.versions if span.start <= start < span.end)
        versions.append(TokenSpan(version=version, start=len(ids), end=len(ids) + len(new)))
        ids += new
        position = end
    ids_N = np.array(ids, dtype=np.int32)
    mask_N = np.zeros(len(ids), dtype=np.uint8)
    for start, end in spans:
        mask_N[start:end] = 1
    logprobs_N, routing_RLK = _run(policy, ids_N, temperature)
    return chunk_of(
        ids_N=ids_N,
        mask_N=mask_N,
        logprobs_N=np.where(mask_N == 1, logprobs_N, np.float32(0)),
        routing_RLK=routing_RLK,
        versions=tuple(versions),
        turns=tuple(spans),
        geometry=geometry,
    )


def _run(policy: Policy, ids_N: Ids, temperature: float) -> tuple[Logprobs, npt.NDArray[np.int64]]:
    """(log-prob of every id, 0 for the first; routing rows), routers free."""
    ids = torch.from_numpy(ids_N.astype(np.int64))
    with torch.no_grad():
        forwarded = policy.forward_packed(ids[:-1], (len(ids) - 1,))
        logprobs_R, _ = policy.logprobs(forwarded.hidden_NH, ids[1:], temperature=temperature)
    return np.concatenate([np.zeros(1, dtype=np.float32), logprobs_R.numpy()]), forwarded.routing_NLK.numpy()
