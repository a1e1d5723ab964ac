"""What the publisher holds of the open barrier: what it publishes, who has answered, and what is known of who has not."""

from __future__ import annotations

from dataclasses import dataclass, field

from t1actors.events import Payload


@dataclass(frozen=True)
class Version:
    """Weights by content digest; ``index`` counts versions from 0."""

    digest: str
    index: int
    weights: Payload


@dataclass
class Barrier:
    """The open barrier: ``step`` names it, ``version`` is what it publishes, ``next_step`` what it opens."""

    step: int
    version: Version
    next_step: int
    offered: bool = False
    quiesced: set[str] = field(default_factory=set[str])
    loaded: dict[str, float] = field(default_factory=dict[str, float])


@dataclass
class Replica:
    """What the supervisor said of one in this session."""

    ready: bool = False
    stopped: int = 0
    reason: str = ""
    """Of its last stop."""

    def __str__(self) -> str:
        words = "is ready" if self.ready else "is not ready"
        if not self.stopped:
            return words
        times = "once" if self.stopped == 1 else f"{self.stopped} times"
        return f"{words} and has stopped {times}, the last time: {self.reason}"
