"""The open intents of one actor: what it meant to do and has not finished.

Guarantees: this is a fold over the actor's own events (``EffectIntended`` opens, ``EffectFinished`` and
``TimerFired`` close, ``CancelRequested`` marks), so the live host and a recovery come to the same table; keys keep
the order in which they opened.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import msgspec

from t1actors.events import (
    AnyEvent,
    CancelRequested,
    EffectFinished,
    EffectIntended,
    TimerFired,
    UnknownEvent,
)
from t1actors.runtime.actor import Effect, Wait
from t1actors.runtime.errors import HostError

_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class Intent:
    """One open effect. ``intended_wall_ns`` is the commit time of its intent. ``scope`` exists while it is
    performed."""

    event: EffectIntended
    attempt: int
    intended_wall_ns: int
    effect: Effect | None = None
    cancel_requested: bool = False
    scope: anyio.CancelScope | None = None


class Intents:
    """An actor's open effects, by key."""

    def __init__(self, actor: str, effect_type: object) -> None:
        self._actor = actor
        self._open: dict[str, Intent] = {}
        self._decoder: msgspec.msgpack.Decoder[Effect] = msgspec.msgpack.Decoder(effect_type)  # pyright: ignore[reportArgumentType, reportCallIssue, reportAttributeAccessIssue]
        self._wait_decoder = msgspec.msgpack.Decoder(Wait)

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Intent]:
        """Every open one, oldest first."""
        return list(self._open.values())

    def get(self, key: str) -> Intent | None:
        """The open one with this key, or None."""
        return self._open.get(key)

    def open(self, key: str) -> Intent:
        """The open one with this key. Raises ``KeyError``."""
        return self._open[key]

    def fold(self, event: AnyEvent | UnknownEvent, *, attempt: int, wall_ns: int) -> None:
        """Applies one of the actor's own events, committed at ``wall_ns``; ``attempt`` is what a new intent begins
        with."""
        if isinstance(event, EffectIntended):
            self._open[event.key] = Intent(event, attempt, wall_ns)
        elif isinstance(event, (EffectFinished, TimerFired)):
            self._open.pop(event.key, None)
        elif isinstance(event, CancelRequested):
            self._open[event.key].cancel_requested = True

    def reopen(self, event: EffectIntended, *, attempt: int, wall_ns: int, cancel_requested: bool) -> None:
        """An effect that a snapshot says was open, intended at ``wall_ns``."""
        self._open[event.key] = Intent(event, attempt, wall_ns, cancel_requested=cancel_requested)

    def intended(self, effect: Effect) -> EffectIntended | None:
        """The event that intends ``effect``; None when the very same effect is open already: a key is what is done,
        so it is under way. Raises ``HostError`` when the key is open for something else, or is being cancelled."""
        event = EffectIntended(
            key=effect.key,
            effect_kind=type(effect).__name__,
            effect=_encoder.encode(effect),
            deadline_s=effect.deadline_s,
        )
        held = self._open.get(effect.key)
        if held is None:
            return event
        if held.cancel_requested:
            raise HostError(
                f"actor {self._actor}: effect {effect.key} is intended again while its cancelling is under way; "
                "wait for its EffectFinished first"
            )
        if held.event != event and _what(self.effect(held)) != _what(effect):
            raise HostError(
                f"actor {self._actor}: effect key {effect.key} is open for {held.event.effect_kind} and is now used for "
                f"another {event.effect_kind}; a key must say exactly what is done"
            )
        return None

    def effect(self, intent: Intent) -> Effect:
        """What ``intent`` is to do: as it was decided, or decoded after a restart. Raises ``HostError``."""
        if intent.effect is None:
            decoder = self._wait_decoder if intent.event.effect_kind == Wait.__name__ else self._decoder
            try:
                intent.effect = decoder.decode(intent.event.effect)
            except msgspec.ValidationError as error:
                raise HostError(
                    f"actor {self._actor}: open effect {intent.event.key} ({intent.event.effect_kind}) is not one that "
                    f"this version of the code can perform ({error}); resume with the version that started the run"
                ) from error
        return intent.effect


def _what(effect: Effect) -> Effect:
    """What is to be done, whatever time a version of the code gives it."""
    return msgspec.structs.replace(effect, deadline_s=None, stall_s=None)
