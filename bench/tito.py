"""What token-in, token-out costs: stitching a trial of T1's size, every row and every check included.

    python -m bench.tito [--quick | --write] [--json FILE]

A trial of 94 turns and 56,000 ids of a model with 48 mixture-of-experts layers, 8 of 256 experts a token: 21.5 MB of routing.
The *floor* is one copy of that routing, which any stitching makes. *Plain lists* is what one would write instead: Python
lists that are extended turn by turn, and nothing checked.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from bench.measure import Spread, cpu, interleaved, ratios, wall
from bench.tables import Table, conclude, parser
from t1actors.events import VersionSpan
from t1actors.log.blobs import MemoryBlobs
from t1actors.tito import audit, record
from t1actors.tito.boundary import Edges
from t1actors.tito.foreign import ForeignCall, stitch_foreign
from t1actors.tito.record import Geometry
from t1actors.tito.stitch import PathTurn, Stitched, Turn, stitch_turns
from t1actors.tito.stored import store

TARGET_MS = 50.0
T1 = Geometry(layers=48, top_k=8, experts=256)


@dataclass(frozen=True)
class Sizes:
    """``distinct_rows`` of routing are drawn, and repeated."""

    turns: int = 94
    ids: int = 56_000
    geometry: Geometry = T1
    distinct_rows: int = 1000
    rounds: int = 9


QUICK = Sizes(turns=4, ids=400, geometry=Geometry(layers=4, top_k=2, experts=8), distinct_rows=50, rounds=1)


def routing_of(sizes: Sizes) -> npt.NDArray[np.uint8]:
    """Rows of distinct experts for a whole trial."""
    g = sizes.geometry
    draws = np.random.default_rng(0).random((sizes.distinct_rows, g.layers, g.experts), dtype=np.float32)
    rows = np.argsort(draws, axis=-1)[..., : g.top_k].astype(np.uint8)
    return np.resize(rows, (sizes.ids - 1, g.layers, g.top_k))


def turns_of(sizes: Sizes) -> list[Turn]:
    """A trial as events hold it: ids and log-probs as tuples, routing as arrays. Every third id is sampled."""
    draw, routing = Random(0), routing_of(sizes)
    turns: list[Turn] = []
    at = rows = 0
    for number in range(sizes.turns):
        end = sizes.ids * (number + 1) // sizes.turns
        sampled = (end - at) // 3
        turns.append(
            Turn(
                context_ids=tuple(draw.randrange(248_320) for _ in range(end - at - sampled)),
                sampled_ids=tuple(draw.randrange(248_320) for _ in range(sampled)),
                logprobs=tuple(float(np.float32(-draw.random())) for _ in range(sampled)),
                routing_RLK=routing[rows : end - 1].copy(),
                versions=(VersionSpan(version="v", start=0, end=sampled),),
            )
        )
        at, rows = end, end - 1
    return turns


def calls_of(turns: Sequence[Turn]) -> list[ForeignCall]:
    """The same trial as a foreign harness records it: the whole prompt of every call, and its new rows."""
    calls: list[ForeignCall] = []
    ids: tuple[int, ...] = ()
    for turn in turns:
        prompt = (*ids, *turn.context_ids)
        calls.append(
            ForeignCall(
                prompt_ids=prompt,
                sampled_ids=turn.sampled_ids,
                logprobs=turn.logprobs,
                routing_RLK=turn.routing_RLK,
                versions=turn.versions,
                known_rows=max(len(ids) - 1, 0),
            )
        )
        ids = (*prompt, *turn.sampled_ids)
    return calls


class NoText:
    """No boundary of an append-only trial asks for text."""

    def decode(self, ids: Sequence[int]) -> str:
        raise AssertionError("a STRICT boundary was looked for in text")


def stitched(turns: Sequence[Turn], sizes: Sizes) -> Stitched:
    return stitch_turns(turns, trial="t", index=0, task="bench", temperature=1.0, geometry=sizes.geometry)


def plain_lists(turns: Sequence[Turn]) -> tuple[list[int], list[int], list[float], list[object]]:
    """Ids, mask, log-probs and routing."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    routing: list[object] = []
    for turn in turns:
        ids += [*turn.context_ids, *turn.sampled_ids]
        mask += [0] * len(turn.context_ids) + [1] * len(turn.sampled_ids)
        logprobs += [0.0] * len(turn.context_ids) + list(turn.logprobs)
        routing += turn.routing_RLK.tolist()
    return ids, mask, logprobs, routing


def stitching_table(sizes: Sizes) -> Table:
    turns, blobs = turns_of(sizes), MemoryBlobs()
    calls = calls_of(turns)
    whole = np.concatenate([turn.routing_RLK for turn in turns])
    made = stitched(turns, sizes).record
    path = [[PathTurn(turn=turn) for turn in turns]]
    edges = Edges(text=NoText(), stop_ids=())
    wire = [base64.b64encode(turn.routing_RLK.astype("<i4").tobytes()) for turn in turns]

    def foreign() -> None:
        stitch_foreign(calls, edges=edges, trial="t", index=0, task="bench", temperature=1.0, geometry=sizes.geometry)

    def decoded() -> None:
        for text in wire:
            np.frombuffer(base64.b64decode(text), dtype="<i4").astype(np.uint8)

    floor, ours = "floor: one copy of the routing", "stitch_turns, checked and audited"
    found = interleaved(
        {
            floor: lambda: whole.tobytes(),
            ours: lambda: stitched(turns, sizes),
            "of that, record.check": lambda: record.check(made, sizes.geometry),
            "of that, audit": lambda: audit.audit(made, path),
            "stitch_foreign: whole prompts, boundaries found and audited": foreign,
            "plain lists, nothing checked": lambda: plain_lists(turns),
            "before it: routing from base64 of int32": decoded,
            "after it: pages, digests, MessagePack": lambda: store(made, blobs),
        },
        rounds=sizes.rounds,
    )

    def ms(spread: Spread) -> Spread:
        return Spread(spread.median * 1e3, spread.low * 1e3, spread.high * 1e3, spread.count)

    met = cpu(found[ours]).median * 1e3 <= TARGET_MS
    return Table(
        f"One trial of {sizes.turns} turns and {sizes.ids:,} ids: {whole.nbytes / 1e6:.1f} MB of routing",
        ("what", "wall ms", "CPU ms", "CPU, times the floor"),
        tuple((name, ms(wall(s)), ms(cpu(s)), ratios(s, found[floor], of_cpu=True)) for name, s in found.items()),
        f"Target: {TARGET_MS:.0f} ms of one CPU a trajectory, checks included: {'met' if met else '**missed**'}. The checks "
        "read every row: experts in range, none twice, and each row equal to its turn's.",
    )


def run(sizes: Sizes) -> list[Table]:
    """A table for each question: stitching; what an endpoint adds to a call goes here too."""
    return [stitching_table(sizes)]


def main() -> None:
    arguments = parser(__doc__, writes=True).parse_args()
    conclude("tito", arguments, lambda: run(QUICK if arguments.quick else Sizes()))


if __name__ == "__main__":
    main()
