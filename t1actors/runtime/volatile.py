"""Volatile blobs: the routing of turns, which is written unflushed because the trial's record will hold the same rows.

Guarantees: a volatile blob counts as needed as long as its trial may still be assembled: from TurnSampled until it is
assembled, failed, cancelled or graded without a reward, or its step is sealed. What any other event names is not volatile,
also when a turn names it, too. A fold: pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from t1actors.events import (
    AnyEvent,
    BatchSealed,
    Graded,
    TrajectoryAssembled,
    TrialCancelled,
    TrialFailed,
    TurnSampled,
    UnknownEvent,
    encode,
)
from t1actors.log.sweep import digests_in
from t1actors.payloads import payloads_of
from t1actors.runtime.trimming import step_of


@dataclass(frozen=True)
class TurnBlob:
    """The blob of a turn's routing."""

    trial: str
    step: int
    digest: str


@dataclass
class NamedBlobs:
    """What the events so far name."""

    durable: set[str] = field(default_factory=set[str])
    _turns: list[TurnBlob] = field(default_factory=list[TurnBlob])
    _over: set[str] = field(default_factory=set[str])
    """Trials that no record will be made of any more."""
    _sealed: set[int] = field(default_factory=set[int])

    def fold(self, event: AnyEvent | UnknownEvent) -> None:
        """Note an event."""
        match event:
            case TurnSampled():
                if event.routing.data.inline is None:
                    self._turns.append(TurnBlob(event.trial, step_of(event), event.routing.data.digest))
                return
            case UnknownEvent():
                self.durable.update(digests_in(encode(event)))
            case TrajectoryAssembled() | TrialFailed() | TrialCancelled():
                self._over.add(event.trial)
            case Graded() if event.outcome != "graded":
                self._over.add(event.trial)
            case BatchSealed():
                self._sealed.add(event.step)
            case _:
                pass
        self.durable.update(payload.digest for _, payload in payloads_of(event) if payload.inline is None)

    def needed(self) -> set[str]:
        """Volatile blobs of trials that may still be assembled."""
        return {turn.digest for turn in self._turns if self._in_play(turn)}

    def done_with(self) -> set[str]:
        """Volatile blobs that nobody needs any more."""
        return {turn.digest for turn in self._turns} - self.needed() - self.durable

    def _in_play(self, turn: TurnBlob) -> bool:
        return turn.trial not in self._over and turn.step not in self._sealed
