"""An engine that says what it is told to, for tests of what stands in front of engines; and endpoints over it."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import numpy as np

from t1actors.engine.interface import GenerateRequest, GenerateResult, RequestRefused, SequenceBusy
from t1actors.events import VersionSpan
from t1actors.harness.endpoint.journal import FileJournal
from t1actors.harness.endpoint.serving import serve
from t1actors.harness.endpoint.settings import Settings
from t1actors.tito.record import Geometry
from tests.tito.plain_renderer import ASSISTANT, END, PlainRenderer, letters, text_of

GEOMETRY = Geometry(layers=2, top_k=2, experts=8)
VERSION = hashlib.sha256(b"scripted").hexdigest()


def echo(request: GenerateRequest) -> tuple[int, ...]:
    """Says how many ids it was shown, so that every answer of a conversation is another."""
    return (*letters(f"I saw {len(request.ids)} ids"), END)


class ScriptedEngine:
    """Keeps the ``Engine`` protocol. Experts are a function of (position, id), so a row that moved shows. ``requests`` are
    all that came; ``gate``, when it is set, holds every request until it is opened."""

    name = "scripted"
    version = VERSION

    def __init__(self, says: Callable[[GenerateRequest], tuple[int, ...]] = echo) -> None:
        self.says = says
        self.requests: list[GenerateRequest] = []
        self.live: set[str] = set()
        self.abandoned = 0
        self.gate: anyio.Event | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        if request.sequence in self.live:
            raise SequenceBusy(f"sequence {request.sequence} is busy")
        if not request.ids:
            raise RequestRefused("no ids")
        self.requests.append(request)
        self.live.add(request.sequence)
        try:
            await anyio.lowlevel.checkpoint()
            if self.gate is not None:
                await self.gate.wait()
        except BaseException:
            self.abandoned += 1
            raise
        finally:
            self.live.discard(request.sequence)
        sampled = self.says(request)[: request.max_new_tokens]
        stream = (*request.ids, *sampled)
        rows = np.array([self.row(j, stream[j]) for j in range(request.known_rows, len(stream) - 1)], dtype=np.uint8)
        return GenerateResult(
            request_id=request.request_id,
            sampled_ids=sampled,
            logprobs=np.array([-0.1 * (n + 1) for n in range(len(sampled))], dtype=np.float32),
            routing_RLK=rows,
            versions=(VersionSpan(version=VERSION, start=0, end=len(sampled)),),
            finish="stop" if sampled[-1] in request.stop_ids else "length",
            entropy_mean=0.5,
            queue_s=0.0,
            prefill_s=0.0,
            decode_s=0.0,
        )

    @staticmethod
    def row(position: int, token: int) -> list[list[int]]:
        first = (position * 31 + token) % 8
        return [[first, (first + 1) % 8], [(first + 2) % 8, (first + 5) % 8]]

    async def load(self, version, weights, *, progress=None) -> None:
        raise AssertionError("an endpoint loads no weights")

    async def release(self, sequence: str) -> None:
        pass

    async def quiesced(self) -> None:
        pass


def last_said(request: GenerateRequest) -> str:
    """The text of the last message that is not the model's, with its mark's place."""
    ids = list(request.ids)
    assert ids[-1] == ASSISTANT
    body = ids[:-1]
    ends = [n for n, token in enumerate(body) if token == END]
    marks = [n for n in range(ends[-1]) if body[n] in (1, 2, 4)]
    return text_of(body[marks[-1] : ends[-1]])


@asynccontextmanager
async def an_endpoint(directory, *, engine=None, renderer=None, geometry=GEOMETRY, token=None, **changes):
    engine = engine or ScriptedEngine()
    settings = Settings(**({"max_ids": 4000, "max_new_tokens": 400} | changes))
    async with (
        engine.running(),
        serve(
            engine, renderer or PlainRenderer(), FileJournal(directory), geometry=geometry, settings=settings, model="m",
            token=token,
        ) as endpoint,
    ):  # fmt: skip
        yield endpoint


def audit_all(endpoint, *, chunks=None, strict=True):
    """The trajectories; every one was audited when it was stitched, and drifts nowhere."""
    found = endpoint.trajectories()
    for trajectory in found:
        stitched = trajectory.stitched
        assert stitched.drift_in_loss == 0
        if strict:
            assert all(boundary.case == "STRICT" for boundary in stitched.boundaries)
        if chunks is not None:
            assert len(stitched.record.chunks) == chunks
        for chunk in stitched.record.chunks:
            arrays = chunk.arrays()
            expected = [ScriptedEngine.row(j, token) for j, token in enumerate(arrays.ids_N.tolist()[:-1])]
            if stitched.record.chunks[0].versions[0].version == VERSION:
                assert arrays.routing_RLK.tolist() == expected
    return found
