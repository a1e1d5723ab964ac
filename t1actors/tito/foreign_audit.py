"""Every boundary between whole prompts, re-checked on the finished record: spans, ids, texts and rows.

Guarantees, for a record that ``audit_boundaries`` accepted: each call's answer stands in it once, as sampled; what stands
before it in its chunk, back to the call before, is what its boundary says that the prompt added; the prompt is made up, id
for id, of the parts that the boundary names, and texts that were said to be equal are; what was dropped is edge; and the rows
that predict the answer are the call's own.

Written from the record's side and apart from ``tito.foreign``: places are counted from each answer backwards, where the
stitcher counts forwards, and nothing of ``tito.boundary`` but its vocabulary is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from t1actors.events import Boundary
from t1actors.tito.audit import AuditError
from t1actors.tito.boundary import MAX_S, MAX_U, Edges
from t1actors.tito.record import ChunkArrays, TrajectoryRecord


class WholeCall(Protocol):
    """What this audit reads of a call: a ``foreign.ForeignCall``."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """All that the model was shown."""
        ...

    @property
    def sampled_ids(self) -> Sequence[int]:
        """What it answered."""
        ...

    @property
    def routing_RLK(self) -> npt.NDArray[np.generic]:
        """The last rows that the call's forwards made; the last one predicts the last sampled id."""
        ...


def audit_boundaries(
    record: TrajectoryRecord, calls: Sequence[WholeCall], boundaries: Sequence[Boundary], edges: Edges
) -> None:
    """Raises ``AuditError`` naming the first turn whose boundary is not what ``boundaries`` says."""
    if [b.turn for b in boundaries] != list(range(1, len(calls))):
        raise AuditError(f"trial {record.trial}: {len(boundaries)} boundaries for {len(calls)} calls")
    places = [(chunk, span, n == 0) for chunk in record.chunks for n, span in enumerate(chunk.turns)]
    if len(places) != len(calls):
        raise AuditError(f"trial {record.trial}: {len(places)} answers recorded of {len(calls)} calls")
    ended = 0
    for number, (call, (chunk, (start, end), first)) in enumerate(zip(calls, places, strict=True)):
        where = f"trial {record.trial}, turn {number}"
        arrays = chunk.arrays()
        boundary = boundaries[number - 1] if number else None
        if first is not (boundary is None or boundary.case == "SPLIT"):
            raise AuditError(f"{where}: its boundary and the chunk that it stands in disagree on where a chunk begins")
        cut = boundaries[number].left_out if number < len(boundaries) else 0
        answer = list(call.sampled_ids[: len(call.sampled_ids) - cut])
        if cut and (cut > 1 or call.sampled_ids[-1] not in edges.markers):
            raise AuditError(f"{where}: {cut} sampled ids are left out of the record, and are no role's mark")
        if arrays.ids_N[start:end].tolist() != answer:
            raise AuditError(f"{where}: ids [{start}, {end}) of its chunk are not its answer")
        added = arrays.ids_N[0 if first else ended : start].tolist()
        if first or boundary is None:
            if added != list(call.prompt_ids):
                raise AuditError(f"{where}: its chunk does not begin with its prompt")
        else:
            _audit_parts(call, calls[number - 1], boundary, added, edges, where)
        _audit_rows(call, arrays, (start, end), len(added), cut, where)
        ended = end


def _audit_parts(
    call: WholeCall, before: WholeCall, boundary: Boundary, added: Sequence[int], edges: Edges, where: str
) -> None:
    """The prompt is what the boundary says that it is made of."""
    said = list(before.sampled_ids)
    what = f"{where}: a boundary of case {boundary.case}"
    if not (0 <= boundary.s <= MAX_S and 0 <= boundary.u <= MAX_U):
        raise AuditError(f"{what} with s = {boundary.s}, u = {boundary.u}")
    kept_prompt = list(before.prompt_ids[: len(before.prompt_ids) - boundary.s])
    match boundary.case:
        case "STRICT" | "NORMALIZED":
            dropped = said[len(said) - boundary.u :]
            if boundary.case == "STRICT" and (boundary.s or boundary.u):
                raise AuditError(f"{what} drops ids")
            if not all(edges.holds(token) for token in dropped):
                raise AuditError(f"{what} drops {dropped} of the answer before, which are more than its edge")
            middle = said[: len(said) - boundary.u]
        case "RETOKENIZED":
            middle = list(call.prompt_ids[boundary.start : boundary.end])
            if boundary.start != len(kept_prompt) or edges.text.decode(middle) != edges.text.decode(said):
                raise AuditError(f"{what}: ids [{boundary.start}, {boundary.end}) of its prompt are another text")
        case "SPLIT":
            raise AuditError(f"{what} inside a chunk")
    if [*kept_prompt, *middle, *added] != list(call.prompt_ids):
        raise AuditError(f"{what}: its prompt is not made of the parts that it names")


def _audit_rows(call: WholeCall, arrays: ChunkArrays, span: tuple[int, int], added: int, cut: int, where: str) -> None:
    """The rows over what the call added and sampled are the call's own last ones, as far as it brought them."""
    start, end = span
    own = call.routing_RLK[: len(call.routing_RLK) - cut]
    count = min(len(own), end - start - 1 + max(added, 1))
    recorded = arrays.routing_RLK[end - 1 - count : end - 1]
    if count < end - start or not np.array_equal(recorded, own[len(own) - count :]):
        raise AuditError(f"{where}: routing rows before {end - 1} of its chunk are not the call's own")
