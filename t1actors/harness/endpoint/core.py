"""The endpoint without HTTP: calls of sessions become committed turns.

Guarantees:
- a turn is durable before its answer leaves here; what was refused, abandoned or failed left no trace;
- a call that comes again under its request id, or that its client sends again after it lost the answer (``Call.is_retry``),
  gets the turn that was committed, or waits for it; it is never taken twice;
- one engine request at a time goes on with a chunk; other calls of the session wait for their chunk and no longer than
  ``busy_wait_s``;
- closing a session ends its calls that are not committed, each with an error that says so; no turn is committed behind it;
- the seed of a turn is a function of (endpoint's seed, session, prompt, how many answers that prompt has): a call that is
  sent again to a restarted endpoint draws what it would have drawn.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
import numpy as np
from blake3 import blake3

from t1actors.engine.interface import (
    Engine,
    EngineError,
    EngineStopped,
    GenerateRequest,
    GenerateResult,
    RequestRefused,
)
from t1actors.events import (
    AnyEvent,
    RewardReported,
    SessionClosed,
    SessionForgotten,
    SessionOpened,
)
from t1actors.harness.endpoint.desk import Desk, LiveCall, chunk_of, closed, committed_turn, is_same
from t1actors.harness.endpoint.errors import CallRefused, bad_request, unavailable
from t1actors.harness.endpoint.form import Answered, Call
from t1actors.harness.endpoint.journal import Events, Journal
from t1actors.harness.endpoint.sessions import Session, Sessions
from t1actors.harness.endpoint.settings import Settings
from t1actors.harness.endpoint.writing import given_of, turn_sampled
from t1actors.log.errors import FrameRefused, LogError
from t1actors.payloads import BlobError, Blobs, unpack_array
from t1actors.tito.graph import (
    SPLITS,
    ConversationFull,
    GraphError,
    Join,
    Placement,
    SessionFull,
    SessionGraph,
)
from t1actors.tito.record import Geometry
from t1actors.tito.render.interface import Renderer, RenderError
from t1actors.tito.stitch import Stitched, stitch_paths

_logger = logging.getLogger(__name__)
_WHAT_DIFFERS: dict[Join, str] = {
    "tools": "the tools are not those of the conversation",
    "history": "a message is not the one that was there",
    "answer": "an assistant's message is not what was given out",
}


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A finished session: ``stitched.record`` and ``reward`` are what a ``train.batch.Batch`` is made of."""

    session: str
    reward: float
    stitched: Stitched


class EndpointCore:
    """See the module. Used from one event loop, while the engine and the journal run."""

    def __init__(
        self, engine: Engine, renderer: Renderer, journal: Journal, *, geometry: Geometry, settings: Settings,
        volatile_routing: bool = False,
    ) -> None:  # fmt: skip
        """``volatile_routing``: a lost machine may take the routing of turns, because somebody then samples them again."""
        self.settings = settings
        self._engine = engine
        self._renderer = renderer
        self._journal = journal
        self._volatile_routing = volatile_routing
        self._geometry = geometry
        self._sessions = Sessions(renderer, max_ids=settings.max_ids, max_turns=settings.max_turns)
        self._desks: dict[str, Desk] = {}
        self._live = 0
        self._number = 0
        """Of the next session."""

    def restore(self) -> None:
        """Take up the sessions that the journal knows. Raises ``LogError``, ``BlobError``."""
        for event in self._journal.events():
            self._sessions.apply(event, self._journal.blobs)
        self._number = self._sessions.opened

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def failed(self) -> str:
        """Why no call can be committed any more; empty while all is well."""
        return self._journal.failed

    @property
    def live_calls(self) -> int:
        return self._live

    def session(self, name: str) -> Session:
        """The session. Raises ``CallRefused``: 404, or 410 where its trajectory was taken."""
        if name in self._sessions.forgotten:
            raise CallRefused(410, f"session {name}: its trajectory was taken; use another name", code="session_gone")
        session = self._sessions.held.get(name)
        if session is None:
            raise CallRefused(404, f"session {name}: not known; its first call opens it", code="session_not_found")
        return session

    def sessions(self) -> list[Session]:
        """All that are held, in the order they were opened."""
        return list(self._sessions.held.values())

    def trajectories(self, sessions: Iterable[str] | None = None) -> list[Trajectory]:
        """The finished sessions (of those named, or of all) as records, in the order they were opened. Blocks.

        Raises:
            TitoError: a record that breaks a guarantee: of this session nothing may be trained on.
            BlobError: a routing payload is missing or damaged.
        """
        wanted = None if sessions is None else set(sessions)
        return [
            Trajectory(session=session.name, reward=session.reward, stitched=self._stitched(session))
            for session in self.sessions()
            if session.finished and session.reward is not None and (wanted is None or session.name in wanted)
        ]

    def _stitched(self, session: Session) -> Stitched:
        return stitch_paths(
            session.graph.paths(lambda routing: unpack_array(self._journal.blobs, routing)),
            trial=session.name,
            index=session.number,
            task=session.task,
            temperature=session.temperature,
            geometry=self._geometry,
        )

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def open(self, name: str, *, task: str, temperature: float | None = None) -> Session:
        """Begin a session before its first call. Raises ``CallRefused``."""
        desk = self._desk(name)
        async with desk.commit:
            self._refuse_known(name)
            opened = self._opening(name, task=task, temperature=temperature)
            self._number += 1
            await self._commit(lambda _: [opened])
        return self.session(name)

    async def reward(self, name: str, reward: float) -> None:
        """The session's reward, once; it is closed with it. Raises ``CallRefused``."""
        if not math.isfinite(reward):
            raise bad_request(f"session {name}: reward {reward} is not a finite number", code="invalid_reward")
        session = self.session(name)
        if session.reward is not None:
            raise CallRefused(
                409, f"session {name}: its reward was reported already: {session.reward}", code="reward_reported"
            )
        if not session.graph.nodes:
            raise CallRefused(409, f"session {name}: no turn was taken, so nothing earned a reward", code="no_turns")
        await self._end(session, [RewardReported(trial=name, reward=reward)])

    async def close(self, name: str) -> None:
        """The session takes no more turns; calls at work in it end without one. Idempotent. Raises ``CallRefused``."""
        await self._end(self.session(name), [])

    async def forget(self, sessions: Iterable[str]) -> None:
        """Hold closed sessions no longer; their names stay taken. Raises ``CallRefused``."""
        names = list(sessions)
        for name in names:
            if not self.session(name).closed:
                raise CallRefused(409, f"session {name}: still open; close it first", code="session_open")
        await self._commit(lambda _: [SessionForgotten(trial=name) for name in names])

    async def leave(self, name: str) -> None:
        """The session goes on elsewhere, or not at all: calls at work in it end without a turn, and none is taken any more.
        Nothing is committed, and nothing will be."""
        desk = self._desk(name)
        self._stop(desk)
        for live in list(desk.live):
            await live.over.wait()
        await self._release(desk)

    def _stop(self, desk: Desk) -> None:
        desk.closing = True
        for live in desk.live:
            live.closed = True
            live.scope.cancel()

    async def _release(self, desk: Desk) -> None:
        for sequence in set(desk.sequences.values()):
            await self._engine.release(sequence)

    async def _end(self, session: Session, first: list[AnyEvent]) -> None:
        desk = self._desk(session.name)
        self._stop(desk)
        async with desk.commit:
            events = list(first)
            if first and session.reward is not None:
                raise CallRefused(
                    409, f"session {session.name}: its reward was reported already", code="reward_reported"
                )
            if not session.closed:
                events.append(SessionClosed(trial=session.name, turns=len(session.graph.nodes)))
            if events:
                await self._commit(lambda _: events)
        await self._release(desk)
        self._desks.pop(session.name, None)

    def _opening(self, name: str, *, task: str = "", temperature: float | None = None) -> SessionOpened:
        self._refuse_unsampled(temperature)
        if len(self._sessions.held) >= self.settings.max_sessions:
            raise CallRefused(
                429,
                f"{len(self._sessions.held)} sessions are held, and that is the limit; take finished ones out (forget)",
                code="too_many_sessions",
                retry_after_s=5.0,
            )
        return SessionOpened(
            trial=name,
            number=self._number,
            task=task or name,
            temperature=self.settings.temperature if temperature is None else temperature,
        )

    def _refuse_unsampled(self, temperature: float | None) -> None:
        if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
            raise bad_request(
                f"temperature = {temperature}: above 0; greedy turns cannot be trained on",
                code="unsupported_value",
                param="temperature",
            )

    def _refuse_known(self, name: str) -> None:
        if name in self._sessions.held or name in self._sessions.forgotten:
            raise CallRefused(409, f"session {name}: there is one of that name already", code="session_exists")

    def _desk(self, name: str) -> Desk:
        return self._desks.setdefault(name, Desk())

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call(self, name: str, call: Call) -> Answered:
        """The committed answer to ``call``. Cancelling it abandons what is not committed yet. Raises ``CallRefused``."""
        while True:
            known = self._sessions.held.get(name)
            if known is not None and (turn := committed_turn(known, call)) is not None:
                return known.answered(turn)
            desk = self._desk(name)
            same = next((live for live in desk.live if is_same(live.call, call)), None)
            if same is None:
                return await self._take(name, desk, call)
            await same.over.wait()  # then it is committed, or failed and this is the next try

    async def _take(self, name: str, desk: Desk, call: Call) -> Answered:
        if self._live >= self.settings.max_calls:
            raise CallRefused(
                429,
                f"{self._live} calls are at work, and that is the limit",
                code="too_many_calls",
                retry_after_s=1.0,
            )
        live = LiveCall(call)
        desk.live.append(live)
        self._live += 1
        try:
            with live.scope:
                return await self._turn(name, desk, live)
            raise closed(name)
        finally:
            self._live -= 1
            desk.live.remove(live)
            live.over.set()
            if not desk.live and name not in self._sessions.held and self._desks.get(name) is desk:
                del self._desks[name]  # the session's first call failed: there is no such session

    async def _turn(self, name: str, desk: Desk, live: LiveCall) -> Answered:
        call = live.call
        session = self._session_for(name, call)
        with _graph_refusals():
            placement = session.graph.place(call.messages, call.tools)
        root = None if placement.parent is None else session.graph.nodes[placement.parent].root
        async with chunk_of(name, desk, root, self.settings.busy_wait_s):
            sequence = self._sequence(name, desk, root)
            ids = session.graph.ids_before(placement)
            request = GenerateRequest(
                request_id=f"{sequence}/{len(session.graph.nodes)}",
                sequence=sequence,
                ids=ids,
                max_new_tokens=min(
                    call.max_new_tokens or self.settings.max_new_tokens,
                    self.settings.max_new_tokens,
                    self.settings.max_ids - len(ids),
                ),
                temperature=session.temperature,
                seed=self._seed(name, call, session.graph, placement),
                stop_ids=self._renderer.stop_ids,
                known_rows=session.graph.known_rows(placement),
            )
            result = await self._generated(request)
            async with desk.commit:
                if live.closed or desk.closing:
                    raise closed(name)
                return await self._committed_turn(name, desk, call, placement, result, sequence)

    async def _committed_turn(
        self, name: str, desk: Desk, call: Call, placement: Placement, result: GenerateResult, sequence: str
    ) -> Answered:
        session = self._session_for(name, call)
        turn = len(session.graph.nodes)
        answer = self._renderer.answer(result.sampled_ids, turn=f"{name}-{turn}", tools=placement.tools)
        opening: list[AnyEvent] = []
        if name not in self._sessions.held:
            opening = [self._opening(name, temperature=session.temperature)]
            self._number += 1
        given = given_of(answer, one_tool_call=call.one_tool_call)

        def events(blobs: Blobs) -> Events:
            sampled = turn_sampled(
                blobs,
                session=name,
                turn=turn,
                placement=placement,
                result=result,
                temperature=session.temperature,
                replica=self._engine.name,
                call=call,
                given=given,
                answer=answer,
                volatile=self._volatile_routing,
            )
            return [*opening, sampled]

        await self._commit(events)
        session = self.session(name)
        desk.sequences[session.graph.nodes[turn].root] = sequence
        if placement.join in SPLITS:
            _logger.warning(
                "session %s, turn %d: SPLIT, a chunk of its own: %s (message %d)",
                name, turn, _WHAT_DIFFERS[placement.join], placement.differs_at,
            )  # fmt: skip
        for broken in answer.broken:
            _logger.warning("session %s, turn %d: a tool call that cannot be read: %s", name, turn, broken.reason)
        if answer.foreign:
            _logger.warning(
                "session %s, turn %d: a tool call in the format of %s, and the model is taken for %s: nothing executes it",
                name, turn, answer.foreign, self._renderer.family,
            )  # fmt: skip
        return session.answered(turn)

    async def _generated(self, request: GenerateRequest) -> GenerateResult:
        try:
            return await self._engine.generate(request)
        except RequestRefused as error:
            raise bad_request(str(error), code="context_length_exceeded", param="messages") from error
        except EngineStopped as error:
            raise unavailable(str(error)) from error
        except EngineError as error:
            raise CallRefused(409, str(error), code="conversation_busy", retry_after_s=1.0) from error

    async def _commit(self, prepare: Callable[[Blobs], Events]) -> None:
        try:
            with anyio.CancelScope(shield=True):
                for event in await self._journal.commit(prepare):
                    self._sessions.apply(event, self._journal.blobs)
        except FrameRefused as error:
            raise CallRefused(413, f"the turn is too large to be kept: {error}", code="turn_too_large") from error
        except (LogError, BlobError) as error:
            raise unavailable(f"nothing can be kept any more: {error}") from error

    def _session_for(self, name: str, call: Call) -> Session:
        """The session that the call is for; one that is not opened yet, where its first turn is still to be committed."""
        if name in self._sessions.forgotten or name in self._sessions.held:
            session = self.session(name)
        else:
            session = self._sessions.new(self._opening(name, temperature=call.temperature))
        if session.closed or self._desk(name).closing:
            raise closed(name)
        if call.temperature is not None and call.temperature != session.temperature:
            raise bad_request(
                f"temperature = {call.temperature}: session {name} is sampled at {session.temperature}, and all of a "
                "trajectory must be; leave it out, or use another session",
                code="unsupported_value",
                param="temperature",
            )
        return session

    def _sequence(self, name: str, desk: Desk, root: int | None) -> str:
        """The engine's name for a chunk's stream: whose cache the call may go on with."""
        if root is not None and root in desk.sequences:
            return desk.sequences[root]
        desk.begun += 1
        sequence = f"{name}/{desk.begun}"
        if root is not None:
            desk.sequences[root] = sequence
        return sequence

    def _seed(self, name: str, call: Call, graph: SessionGraph, placement: Placement) -> int:
        """The parent stands for the ids before the context."""
        if call.seed is not None:
            said = f"client\0{call.seed}"
        else:
            context = blake3(np.array(placement.context_ids, dtype=np.int64).tobytes()).hexdigest()
            said = f"{self.settings.seed}\0{name}\0{placement.parent}\0{context}\0{graph.beside(placement)}"
        return int.from_bytes(blake3(said.encode()).digest(length=8), "little")


@contextmanager
def _graph_refusals() -> Generator[None]:
    try:
        yield
    except ConversationFull as error:
        raise bad_request(str(error), code="context_length_exceeded", param="messages") from error
    except SessionFull as error:
        raise bad_request(str(error), code="too_many_turns") from error
    except (GraphError, RenderError) as error:
        raise bad_request(str(error), code="unsupported_messages", param="messages") from error
