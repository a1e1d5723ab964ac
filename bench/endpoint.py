"""What the endpoint adds to a call, and what it is spared by holding the ids.

    python -m bench.endpoint [--quick | --write] [--json FILE]

The engine answers at once with the same ids, so that what is measured is everything else: HTTP on the loopback, reading the
request (the whole conversation, as clients send it), finding its place, rendering what is new, the commit to the disk with
the call's routing, and the answer. The client is httpx2 over one kept connection and shares the process, so its own work
counts too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2
import msgspec
import numpy as np

from bench.measure import Sample, Spread, cpu_seconds
from bench.tables import Table, conclude, parser
from t1actors.engine.interface import GenerateRequest, GenerateResult
from t1actors.events import VersionSpan
from t1actors.harness.endpoint.journal import FileJournal
from t1actors.harness.endpoint.serving import Endpoint, serve
from t1actors.harness.endpoint.settings import Settings
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.tito.record import Geometry
from t1actors.tito.render.choice import renderer_for
from t1actors.tito.render.messages import Message

TARGET_MS = 5.0
SMALL, T1 = Geometry(layers=2, top_k=2, experts=8), Geometry(layers=48, top_k=8, experts=256)
OBSERVATION = "drwxr-xr-x 2 root root 4096 Jan  1 00:00 folder\n" * 8


@dataclass(frozen=True)
class Sizes:
    """``turns``: where in a conversation calls are measured. ``rounds`` conversations of the longest are held."""

    turns: tuple[int, ...] = (8, 32, 128)
    rounds: int = 5


QUICK = Sizes(turns=(2, 4), rounds=1)


class InstantEngine:
    """Answers at once, the same ids each time; routing of ``geometry``."""

    name = version = "instant"

    def __init__(self, sampled: tuple[int, ...], geometry: Geometry) -> None:
        self._sampled = sampled
        experts = (
            np.arange(geometry.layers * geometry.top_k).reshape(geometry.layers, geometry.top_k) % geometry.experts
        )
        self._row = experts.astype(np.uint8)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        rows = len(request.ids) + len(self._sampled) - 1 - request.known_rows
        return GenerateResult(
            request_id=request.request_id,
            sampled_ids=self._sampled,
            logprobs=np.full(len(self._sampled), -0.5, dtype=np.float32),
            routing_RLK=np.repeat(self._row[None], rows, axis=0),
            versions=(VersionSpan(version="instant", start=0, end=len(self._sampled)),),
            finish="stop",
            entropy_mean=0.0,
            queue_s=0.0,
            prefill_s=0.0,
            decode_s=0.0,
        )

    async def load(self, version, weights, *, progress=None) -> None:
        raise AssertionError("an endpoint loads no weights")

    async def release(self, sequence: str) -> None:
        pass

    async def quiesced(self) -> None:
        pass


def tools() -> tuple[Tokenizer, tuple[int, ...]]:
    """The shipped model's tokenizer, and an answer."""
    tokenizer = Tokenizer.from_folder(model_folder("builtin:demo"))
    return tokenizer, (*tokenizer.encode("ls -la folder"), tokenizer.special.end)


@asynccontextmanager
async def endpoint_over(directory: Path, geometry: Geometry) -> AsyncIterator[Endpoint]:
    tokenizer, sampled = tools()
    settings = Settings(max_ids=10**6)
    engine = InstantEngine(sampled, geometry)
    async with serve(
        engine, renderer_for(tokenizer), FileJournal(directory), geometry=geometry, settings=settings, model="m"
    ) as endpoint:
        yield endpoint


async def converse(endpoint: Endpoint, http: httpx2.AsyncClient, name: str, turns: int) -> list[Sample]:
    """Each call."""
    url, messages = f"{endpoint.session_url(name)}/chat/completions", [{"role": "user", "content": "begin"}]
    seconds: list[Sample] = []
    for _ in range(turns):
        body = msgspec.json.encode({"model": "m", "messages": messages})
        wall_s, cpu_s = time.perf_counter(), cpu_seconds()
        answer = await http.post(url, content=body)
        seconds.append(Sample(time.perf_counter() - wall_s, cpu_seconds() - cpu_s))
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": OBSERVATION}]
    return seconds


def milliseconds(values: list[float]) -> Spread:
    return Spread.of([value * 1e3 for value in values])


def calls_of(sizes: Sizes, geometry: Geometry) -> dict[int, list[Sample]]:
    """The calls around each place of a conversation, over all rounds."""
    found: dict[int, list[Sample]] = {turns: [] for turns in sizes.turns}

    async def main(directory: Path) -> None:
        async with endpoint_over(directory, geometry) as endpoint, httpx2.AsyncClient(timeout=60) as http:
            await converse(endpoint, http, "warm", 3)
            for number in range(sizes.rounds):
                seconds = await converse(endpoint, http, f"s{number}", max(sizes.turns))
                for turns in sizes.turns:
                    found[turns] += seconds[max(1, turns - 4) : turns]

    with tempfile.TemporaryDirectory() as place:
        anyio.run(main, Path(place), backend="trio")
    return found


def rendering_of(turns: int, rounds: int) -> tuple[int, list[float], list[float]]:
    """Ids of the prompt of a conversation's last turn; seconds to render what it adds, and to render all of it."""
    tokenizer, _ = tools()
    renderer = renderer_for(tokenizer)
    said = Message(role="assistant", content="ls -la folder")
    new = [Message(role="user", content=OBSERVATION)]
    whole = [Message(role="user", content="begin"), *([said, *new] * turns)]
    added, all_of_it = [], []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        renderer.extension(new, last_sampled=renderer.stop_ids[0])
        middle = time.perf_counter()
        ids = renderer.opening(whole)
        added.append(middle - begin)
        all_of_it.append(time.perf_counter() - middle)
    return len(ids), added[1:], all_of_it[1:]


def overhead_table(sizes: Sizes) -> Table:
    rows = []
    for name, geometry in (("2 layers, 2 experts", SMALL), ("48 layers, 8 experts", T1)):
        found = calls_of(sizes, geometry)
        for turns in sizes.turns:
            wall = milliseconds([call.wall_s for call in found[turns]])
            rows.append((name, turns, wall, milliseconds([call.cpu_s for call in found[turns]])))
    worst = max(row[2].median for row in rows)
    return Table(
        "What the endpoint adds to a call",
        ("routing", "turn of the conversation", "wall ms a call", "CPU ms"),
        tuple(rows),
        f"Target: {TARGET_MS:.0f} ms at the median, generation left out: {'met' if worst < TARGET_MS else '**missed**'}. "
        "Each call is durable before it is answered.",
    )


def rendering_table(sizes: Sizes) -> Table:
    rows = []
    for turns in sizes.turns:
        ids, added, all_of_it = rendering_of(turns, 2 * sizes.rounds + 1)
        rows.append((turns, ids, milliseconds(added), milliseconds(all_of_it)))
    return Table(
        "Rendering what a call adds, and rendering the whole conversation",
        ("turns", "ids of the prompt", "ms, what is new", "ms, all of it"),
        tuple(rows),
        "What is new is as much at every turn, and all that is rendered here.",
    )


def run(sizes: Sizes) -> list[Table]:
    return [overhead_table(sizes), rendering_table(sizes)]


def main() -> None:
    arguments = parser(__doc__, writes=True).parse_args()
    conclude("endpoint", arguments, lambda: run(QUICK if arguments.quick else Sizes()))


if __name__ == "__main__":
    main()
