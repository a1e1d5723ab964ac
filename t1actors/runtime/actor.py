"""What an actor is: three functions and the values that pass between them.

    fold(state, event) -> state                 pure: the state is owned by the caller, who passes it on
    decide(state, event) -> Decision            pure: no clock, no randomness, no input or output
    await perform(effect, context) -> events    the only impure part

The runtime (``runtime.host``) applies events one at a time, commits {inputs in applied order, outputs} as one frame,
delivers causally, and performs an effect only after its ``EffectIntended`` is durable. After a crash it folds the
journals again and performs what was intended and not finished, so ``perform`` must be idempotent by ``effect.key``.

Other actors' events are folded and decided on, but for the private ones (``events.PRIVATE_EVENTS``), which nobody else sees.
An actor's own outputs are folded, never decided on, except ``EffectFinished`` and ``TimerFired``, and what an effect tells
while it is performed (``Performing.tell``): when they are decided on, the events before them have already been folded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from t1actors.config import Config
from t1actors.events import AnyEvent, UnknownEvent
from t1actors.payloads import Blobs


class Effect(msgspec.Struct, frozen=True, kw_only=True, tag_field="effect", tag=True):
    """Base of an actor's effects. ``key`` says what is done (``s0.t3/2/sample``), never where or which attempt;
    ``deadline_s`` is the longest it may take (None only for bulk work), ``stall_s`` the longest that bulk work may go without
    reporting progress: then its process is taken for stuck, killed, and started again."""

    key: str
    deadline_s: float | None = None
    stall_s: float | None = None


class Wait(Effect, frozen=True, kw_only=True):
    """Built into the runtime: ``TimerFired(key)`` after ``seconds`` (also across a restart: what is left of them)."""

    seconds: float


@dataclass(frozen=True)
class Decision:
    """``events`` are committed with the input that caused them; ``effects`` begin once that frame is durable;
    ``cancels`` are keys of effects to stop (finished ones are ignored; a stopped one ends with
    EffectFinished(status="cancelled"))."""

    events: Sequence[AnyEvent] = ()
    effects: Sequence[Effect] = ()
    cancels: Sequence[str] = ()


NOTHING = Decision()


class Unrecoverable(Exception):
    """Raised by a factory, by ``running`` or by ``perform`` when a restart cannot help (the host forbids namespaces,
    a model folder is missing): the run ends at once with this message, which says what to do."""


S = TypeVar("S")


async def _tell_nobody(events: Sequence[AnyEvent]) -> bool:
    raise AssertionError(f"no host performs this effect, so nobody keeps {events}")


@dataclass
class Performing:
    """What ``perform`` is given besides the effect: a place for sub-phase seconds, a progress report, what it may tell, the
    attempt (above 1 when an earlier incarnation may already have acted: ask the world by key first)."""

    attempt: int
    report: Callable[[float, float, str], Awaitable[None]]
    """``await report(done, total, unit)``: becomes ``ProgressReported``."""
    tell: Callable[[Sequence[AnyEvent]], Awaitable[bool]] = _tell_nobody
    """``await tell(events)``: what happened while the effect is performed, from outside (a program that it serves called).
    The events are folded, the last one is decided on, and all are durable when it returns True. False: nothing was kept,
    because the effect's cancelling was decided, or the host stops."""
    phases: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class ActorContext:
    """What the host gives an actor when it is built."""

    name: str
    run_dir: Path
    config: Config
    blobs: Blobs
    epoch: int
    monotonic: Callable[[], float]


class Actor(Protocol, Generic[S]):
    """An actor. ``reads`` are the names of the actors whose journals it follows (its own and the supervisor's are
    always read). ``effect_type`` is the union of its Effect structs, used to decode open intents after a restart.

    Its state is data, and always of the type that ``initial`` gives: a dataclass or Struct whose fields say at any depth of
    what types they are, or one plain value. Snapshots are taken of it; ``perform`` must not change it."""

    reads: frozenset[str]
    effect_type: object

    def initial(self) -> S:
        """The state before any event. An actor that looks at its state while it performs keeps this object, a dataclass that
        can be changed: what a snapshot holds is put into it."""
        ...

    def fold(self, state: S, event: AnyEvent | UnknownEvent) -> S:
        """The state after ``event``, which may be ``state`` changed in place. Pure."""
        ...

    def decide(self, state: S, event: AnyEvent | UnknownEvent) -> Decision:
        """What follows from ``event``, given the state after it. Pure."""
        ...

    async def perform(self, effect: Effect, performing: Performing) -> Sequence[AnyEvent]: ...
    def running(self) -> AbstractAsyncContextManager[None]:
        """Held open while effects are performed: engines, fork servers, loaded models live here."""
        ...


ActorFactory = Callable[[ActorContext], Actor[object]]
"""Module-level factory named in ``"package.module:attribute"``; importing the module must not import torch unless
the actor needs it."""
