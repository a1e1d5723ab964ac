"""The sessions of an endpoint: a fold over its events.

    sessions.apply(event, blobs)        # from the journal, or just committed

Guarantees: applying the events of a journal in order gives the same sessions again, ids, graph and all; nothing else changes
a session. A session is *finished* when it is closed, has turns and a reward: then it is a trajectory.

Pure but for the payloads it opens. Which events are written is ``core``'s business.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from t1actors.events import (
    AnyEvent,
    ChatCall,
    RewardReported,
    SessionClosed,
    SessionForgotten,
    SessionOpened,
    TurnSampled,
    UnknownEvent,
)
from t1actors.harness.endpoint.form import Answered
from t1actors.harness.endpoint.journal import Said
from t1actors.payloads import Blobs, unpack
from t1actors.tito.graph import Join, NodeTurn, Placement, SessionGraph
from t1actors.tito.render.interface import Renderer

_read_said = msgspec.json.Decoder(Said)


@dataclass(frozen=True)
class TurnNote:
    """What is kept of a turn beside its node, to hand it out again."""

    request_id: str
    request: str
    finish: str
    broken: int = 0
    foreign: str = ""


@dataclass
class Session:
    """One session. ``notes`` are by turn."""

    name: str
    number: int
    task: str
    temperature: float
    graph: SessionGraph
    notes: list[TurnNote] = field(default_factory=list[TurnNote])
    turn_of: dict[str, int] = field(default_factory=dict[str, int])
    """Request id to turn."""
    unclaimed: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Of a session whose harness began again (``begin_again``), by request: turns that nobody asked for since."""
    reward: float | None = None
    closed: bool = False

    @property
    def broken_calls(self) -> int:
        """Tool calls that could not be read."""
        return sum(note.broken for note in self.notes)

    @property
    def foreign_calls(self) -> dict[str, int]:
        """Turns with tool calls in another family's format, by that family."""
        return dict(sorted(Counter(note.foreign for note in self.notes if note.foreign).items()))

    @property
    def finished(self) -> bool:
        return self.closed and self.reward is not None and bool(self.graph.nodes)

    def begin_again(self) -> None:
        """The harness starts from its beginning: each turn that is there answers one call that asks for the same."""
        self.unclaimed = {}
        for turn, note in enumerate(self.notes):
            self.unclaimed.setdefault(note.request, []).append(turn)

    def claim(self, request: str, turn: int | None = None) -> int | None:
        """The oldest turn (or ``turn``) that answered ``request`` and was not asked for since ``begin_again``; None: none."""
        left = self.unclaimed.get(request, [])
        if not left or (turn is not None and turn not in left):
            return None
        return left.pop(0 if turn is None else left.index(turn))

    def answered(self, turn: int) -> Answered:
        """What was handed out for the turn."""
        node, note = self.graph.nodes[turn], self.notes[turn]
        prompt = node.ends_at - len(node.turn.sampled_ids)
        return Answered(
            session=self.name,
            turn=turn,
            given=node.given,
            finish="stop" if note.finish == "stop" else "length",
            version=node.turn.versions[-1].version,
            prompt_ids=prompt,
            held_ids=prompt - len(node.context_ids),
            sampled_ids=node.turn.sampled_ids,
            logprobs=node.turn.logprobs,
        )


@dataclass
class Sessions:
    """Every session that is held, in the order they were opened."""

    renderer: Renderer
    max_ids: int
    max_turns: int
    held: dict[str, Session] = field(default_factory=dict[str, Session])
    forgotten: set[str] = field(default_factory=set[str])
    opened: int = 0

    def new(self, opened: SessionOpened) -> Session:
        """A session that is not held yet."""
        graph = SessionGraph(self.renderer, max_ids=self.max_ids, max_turns=self.max_turns)
        return Session(opened.trial, opened.number, opened.task, opened.temperature, graph)

    def apply(self, event: AnyEvent | UnknownEvent, blobs: Blobs) -> None:
        """The event happened. Raises ``BlobError``."""
        match event:
            case SessionOpened():
                self.held[event.trial] = self.new(event)
                self.opened = max(self.opened, event.number + 1)
            case TurnSampled(chat=ChatCall() as chat):
                self._took(self.held[event.trial], event, chat, blobs)
            case RewardReported():
                self.held[event.trial].reward = event.reward
            case SessionClosed():
                self.held[event.trial].closed = True
            case SessionForgotten():
                del self.held[event.trial]
                self.forgotten.add(event.trial)
            case _:
                pass

    def _took(self, session: Session, event: TurnSampled, chat: ChatCall, blobs: Blobs) -> None:
        said = _read_said.decode(unpack(blobs, chat.said))
        graph = session.graph
        placement = Placement(
            parent=chat.continues,
            context_ids=event.context_ids,
            messages=said.messages,
            tools=said.tools if chat.continues is None else graph.nodes[chat.continues].tools,
            join=msgspec.convert(chat.join, Join),
        )
        turn = NodeTurn(
            sampled_ids=event.sampled_ids,
            logprobs=event.logprobs,
            routing=event.routing,
            versions=event.versions,
            canonical=event.canonical,
        )
        node = graph.add(placement, turn, given=said.given)
        session.notes.append(TurnNote(chat.request_id, chat.request, event.finish, chat.broken, chat.foreign))
        if chat.request_id:
            session.turn_of[chat.request_id] = node.number
