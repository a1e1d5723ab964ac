"""What is at work in a session: the calls, and who may go on with which chunk.

Guarantees: a call knows the turn that answered it before, or the call at work that is the same; a chunk is gone on with by
one call at a time. Nothing here is kept: after a restart no call is at work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from t1actors.harness.endpoint.errors import CallRefused
from t1actors.harness.endpoint.form import Call
from t1actors.harness.endpoint.sessions import Session


@dataclass(eq=False)
class LiveCall:
    """A call at work. ``scope`` is cancelled by who closes the session, as long as nothing is being committed."""

    call: Call
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    over: anyio.Event = field(default_factory=anyio.Event)
    closed: bool = False


@dataclass(eq=False)
class Desk:
    """What is at work in a session. ``chunks``: who may go on with one, by the node that it begins with."""

    commit: anyio.Lock = field(default_factory=anyio.Lock)
    chunks: dict[int, anyio.Lock] = field(default_factory=dict[int, anyio.Lock])
    live: list[LiveCall] = field(default_factory=list[LiveCall])
    sequences: dict[int, str] = field(default_factory=dict[int, str])
    begun: int = 0
    closing: bool = False


def committed_turn(session: Session, call: Call) -> int | None:
    """The turn that answered the call before, if one did. Raises ``CallRefused`` where its id is another call's."""
    turn = session.turn_of.get(call.request_id) if call.request_id else None
    if turn is not None and session.notes[turn].request != call.digest:
        raise CallRefused(
            422,
            f"request id {call.request_id}: session {session.name} answered another call under it; use an id once",
            code="request_id_reused",
        )
    if turn is not None:
        session.claim(call.digest, turn)
    elif call.is_retry:
        # An answer that somebody went on from was not lost.
        found = [
            number
            for number, note in enumerate(session.notes)
            if note.request == call.digest and not session.graph.children(number)
        ]
        turn = found[-1] if found else None
    return session.claim(call.digest) if turn is None else turn


def is_same(live: Call, call: Call) -> bool:
    """Whether ``call`` is what ``live`` is at work for: then it waits for that."""
    if call.request_id and call.request_id == live.request_id:
        return True
    return call.is_retry and call.digest == live.digest


def closed(name: str) -> CallRefused:
    """409, which no retry mends."""
    return CallRefused(409, f"session {name} is closed: it takes no more turns", code="session_closed")


@asynccontextmanager
async def chunk_of(name: str, desk: Desk, root: int | None, wait_s: float) -> AsyncGenerator[None]:
    """The right to go on with a chunk, for the block. Raises ``CallRefused`` when another call has it for too long."""
    if root is None:
        yield
        return
    lock = desk.chunks.setdefault(root, anyio.Lock())
    mine = False
    try:
        lock.acquire_nowait()
        mine = True
    except anyio.WouldBlock:
        with anyio.move_on_after(wait_s):
            await lock.acquire()
            mine = True
    if not mine:
        raise CallRefused(
            409,
            f"session {name}: another call has been going on with this conversation for {wait_s:g} s",
            code="conversation_busy",
            retry_after_s=1.0,
        )
    try:
        yield
    finally:
        lock.release()
