"""Which steps of a run stay replayable when only the last few must, and what of the trainers' states they need.

To replay a step one needs the trajectories of it and of every step since the last kept state of critic and actor, and that
state. So the trials of a few more steps stay than were asked for: of those behind a snapshot (``train.snapshot_every``).

Guarantees, for the steps from ``Kept.first_step`` on: whatever their replay opens is in events of steps from ``kept_step``
on, in states that ``Kept.states`` names or in the initial ones; also after the trainers have deleted every state that is no
snapshot. Nothing that a step under way needs is left out: only finished steps are counted. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from t1actors.events import (
    ActorInitialised,
    ActorUpdated,
    AnyEvent,
    BatchSealed,
    CriticInitialised,
    CriticUpdated,
    Payload,
    Purpose,
    StepOpened,
    UnknownEvent,
)
from t1actors.train.lanes import actor_lane, last_before, trains_critic

LATEST = 2
"""Of each part the last states written: the trainers go on from these."""


@dataclass(frozen=True)
class Kept:
    """Steps from ``first_step`` on stay replayable, and need the trials of those from ``kept_step`` on; ``states`` are
    digests of states and weights that older steps wrote and that stay besides."""

    first_step: int
    kept_step: int
    states: frozenset[str]


@dataclass
class Steps:
    """What the log says of the run's steps: a fold."""

    opened: dict[int, tuple[Purpose, str]] = field(default_factory=dict[int, tuple[Purpose, str]])
    """Step -> purpose, and the version that sampled it."""
    sealed: set[int] = field(default_factory=set[int])
    critic: dict[int, CriticUpdated] = field(default_factory=dict[int, CriticUpdated])
    actor: dict[int, ActorUpdated] = field(default_factory=dict[int, ActorUpdated])
    initial_version: str = ""
    initial: set[str] = field(default_factory=set[str])
    """Digests of the initial states and weights."""

    def fold(self, event: AnyEvent | UnknownEvent) -> None:
        """Note an event."""
        match event:
            case StepOpened():
                self.opened[event.step] = (event.purpose, event.version)
            case BatchSealed():
                self.sealed.add(event.step)
            case CriticUpdated():
                self.critic[event.step] = event
            case ActorUpdated():
                self.actor[event.step] = event
            case CriticInitialised():
                self.initial.add(event.state.digest)
            case ActorInitialised():
                self.initial |= {event.state.digest, event.weights.digest}
                self.initial_version = event.version
            case _:
                pass

    def kept(self, count: int, *, replayable: int = 0, since: int = 0) -> Kept:
        """What stays when the last ``count`` finished steps must stay replayable. ``replayable``: the first step that still
        is; ``since``: the first one whose trials are still there."""
        finished = since
        while finished in self.opened and self._finished(finished):
            finished += 1
        wanted = max(replayable, finished - count)
        first, states = wanted, set(self.initial)
        for step in range(wanted, len(self.opened)):
            if step in self.opened:
                for needed, digests in self._grounds(step):
                    first = min(first, max(needed, since))
                    states |= digests
        states |= {payload.digest for payload in self._latest()}
        return Kept(wanted, first, frozenset(states))

    def states_of(self, step: int) -> Iterator[Payload]:
        """The states and weights that the step wrote."""
        if step in self.critic:
            yield self.critic[step].state
        if step in self.actor:
            yield self.actor[step].state
            yield self.actor[step].weights

    def _finished(self, step: int) -> bool:
        purpose = self.opened[step][0]
        if purpose == "evaluate":
            return step in self.sealed
        return step in self.critic and (actor_lane(purpose) is None or step in self.actor)

    def _latest(self) -> Iterator[Payload]:
        for step in sorted(self.critic)[-LATEST:]:
            yield self.critic[step].state
        lanes: dict[str | None, int] = {
            actor_lane(self.opened[s][0]): s for s in sorted(self.actor) if s in self.opened
        }
        for step in {*sorted(self.actor)[-LATEST:], *lanes.values()}:
            yield from (self.actor[step].state, self.actor[step].weights)

    # --- what replaying a step rests on, as replay.chain finds it ---------------------------------------------------------

    def _grounds(self, step: int) -> Iterator[tuple[int, set[str]]]:
        """(step that must be run again, states that it begins from) of all that replaying ``step`` takes. Only snapshots
        count as there: other states go as the run goes on."""
        critics, actors = {step}, {step} if self._lane(step) else set[int]()
        if self.opened[step][0] == "evaluate":
            yield step, set()
            return
        work = [step]
        while work:
            number = work.pop()
            digests: set[str] = set()
            sources: list[tuple[set[int], int]] = []
            before = last_before(number, (n for n in self.opened if trains_critic(self.opened[n][0])))
            if before is not None:
                self._from(before, self.critic, critics, digests, sources)
            if number in actors:
                before = last_before(number, (n for n in self.opened if self._lane(n) == self._lane(number)))
                if before is not None:
                    self._from(before, self.actor, actors, digests, sources)
                self._version(number, before, actors, digests, sources)
            yield number, digests
            for kind, source in sources:
                if source not in kind:
                    kind.add(source)
                    work.append(source)

    @staticmethod
    def _from(
        before: int,
        updates: Mapping[int, CriticUpdated] | Mapping[int, ActorUpdated],
        kind: set[int],
        digests: set[str],
        sources: list[tuple[set[int], int]],
    ) -> None:
        update = updates.get(before)
        if update is not None and update.snapshot:
            digests.add(update.state.digest)
        else:
            sources.append((kind, before))

    def _version(
        self, step: int, before: int | None, actors: set[int], digests: set[str], sources: list[tuple[set[int], int]]
    ) -> None:
        """The weights that sampled the step, unless its own state before is these."""
        version = self.opened[step][1]
        own = (
            self.initial_version if before is None else self.actor[before].weights_after if before in self.actor else ""
        )
        if version in (own, self.initial_version):
            return
        made = next((n for n, update in sorted(self.actor.items()) if update.weights_after == version), None)
        if made is None:
            return
        if self._weights_stay(made):
            digests.add(self.actor[made].weights.digest)
        else:
            sources.append((actors, made))

    def _weights_stay(self, step: int) -> bool:
        """Those of a snapshot, and of the update before one: ``actors.training.Retention``."""
        following = next((self.actor[n] for n in sorted(self.actor) if n > step), None)
        return self.actor[step].snapshot or (following is not None and following.snapshot)

    def _lane(self, step: int) -> str | None:
        return actor_lane(self.opened[step][0])
