"""What must hold whatever happens: checked while the simulation runs, and on what it leaves.

A ``Fault`` names the rule that was broken and where. The rules are the design's invariants: acknowledged means durable;
nobody acts on what is not; nothing is lost and nothing happens twice; staleness is 0, then 1; and the digests of every step
are those of the run that nobody disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TypeAlias

from blake3 import blake3

from t1actors.events import (
    ActorUpdated,
    AnyEvent,
    BatchSealed,
    BatchShort,
    CriticUpdated,
    EffectFinished,
    EffectIntended,
    EpisodeEnded,
    Graded,
    ReplicaReclaimed,
    RunFailed,
    RunFinished,
    SandboxReady,
    SandboxReclaimed,
    SandboxRequested,
    SandboxSealed,
    StepOpened,
    TimerFired,
    TrajectoryAssembled,
    TurnExecuted,
    TurnSampled,
    UnknownEvent,
    ValuesEstimated,
    WeightsPublished,
    decode,
)
from t1actors.log.aside import RESTS_ON_LOST, Aside
from t1actors.log.blobs import FileBlobs
from t1actors.log.check import check_blobs, check_journals
from t1actors.log.filelog import FileLog
from t1actors.log.interface import CommitHead
from t1actors.log.merged import merged

Digests: TypeAlias = list[tuple[str, int, str]]


class Fault(AssertionError):
    """A rule was broken."""


def content(events: Sequence[bytes]) -> bytes:
    return blake3(b"\0".join(events)).digest()


class Oracle:
    """Sees every acknowledgement and every act of one simulation."""

    def __init__(self) -> None:
        self._acknowledged: dict[str, dict[int, tuple[int, bytes]]] = {}
        self._intents: set[tuple[str, str]] = set()
        self.found: list[str] = []
        self.stop: Callable[[], object] = lambda: None
        """Called at the first fault: there is no need to go on."""
        self.appends = 0
        self.turns_lost = 0
        """Cuts because of a turn's routing."""
        self._flushed = True
        self._asides: set[tuple[str, str]] = set()

    def fault(self, what: str) -> None:
        """Note it: whoever broke the rule may be about to die."""
        self.found.append(what)
        self.stop()

    def opened(self, log: FileLog, journal: str, next_sequence: int) -> None:
        """A journal was recovered: nothing that was acknowledged may be missing. Frames whose writer died before it knew that
        they were durable count from now on."""
        known = self._acknowledged.get(journal, {})
        behind = max((base + count for base, (count, _) in known.items()), default=0)
        if next_sequence < behind:
            self.fault(f"{journal} goes on at {next_sequence}, and events up to {behind} were acknowledged")
        elif next_sequence > behind:
            start = max(behind, log.kept_from(journal))  # what was trimmed was seen before
            with closing(log.open_reader(journal, from_sequence=start)) as reader:
                while frames := reader.read():
                    for frame in frames:
                        self._intended(journal, frame.events)

    def acknowledged(self, journal: str, first: int, head: CommitHead, events: Sequence[bytes]) -> None:
        """An append has returned."""
        self.appends += 1
        known = self._acknowledged.setdefault(journal, {})
        if events:
            if known and next(reversed(known)) >= first:
                self.fault(f"{journal}: events from {first} are written a second time")
            known[first] = (len(events), content(events))
        self._intended(journal, events)

    def _intended(self, journal: str, events: Sequence[bytes]) -> None:
        for event in map(decode, events):
            if isinstance(event, EffectIntended):
                self._intents.add((journal, event.key))

    def lost_power_unflushed(self) -> None:
        """Under ``durability = "process"`` what was acknowledged may be gone after a power cut; what is left must fit."""
        self._acknowledged.clear()
        self._flushed = False

    def settled(self, asides: Sequence[Aside]) -> None:
        """What was cut so far at the starts of the run. Where all is flushed only a lost turn is a reason, and what an actor
        would go on from is always there."""
        new = [aside for aside in asides if (aside.journal, aside.file) not in self._asides]
        self._asides |= {(aside.journal, aside.file) for aside in new}
        if not self._flushed:
            return
        for aside in new:
            self.turns_lost += "TurnSampled.routing" in aside.reason
            if "TurnSampled.routing" not in aside.reason and aside.reason != RESTS_ON_LOST:
                self.fault(f"{aside.journal} was cut at {aside.from_sequence} although all was flushed: {aside.reason}")
            known = self._acknowledged.get(aside.journal, {})
            for base in [base for base in known if base >= aside.from_sequence]:
                del known[base]

    def acts(self, actor: str, key: str) -> None:
        """An effect is about to be performed."""
        if (actor, key) not in self._intents:
            self.fault(f"{actor} performs {key} before its intent is durable")

    def command(self, sandbox: str, key: str, command: str, ran: Sequence[str]) -> None:
        """A command is about to run in a sandbox in which ``ran`` were run."""
        turn = int(key.split("/")[1])
        if turn != len(ran):
            self.fault(f"sandbox {sandbox}: turn {turn} runs after {len(ran)} others")

    def trained(self, step: int, purpose: str, trained: int, stale: int) -> None:
        """The actor is about to update itself."""
        if purpose == "train" and stale != min(trained, 1):
            self.fault(f"step {step}: staleness {stale} of training step {trained}")

    # --- on what is left --------------------------------------------------------------------------------------------------

    def judge(self, log: FileLog, blobs: FileBlobs, shells: Iterable[str], wanted: Digests | None) -> None:
        """Raises ``Fault``: the first rule that was broken."""
        if self.found:
            raise Fault(self.found[0])
        if problems := [*check_journals(log).problems, *check_blobs(blobs)]:
            raise Fault(f"the log check finds: {problems[0].journal} {problems[0].message}")
        self._still_there(log)
        entries = [(entry.frame.journal, decode(entry.raw)) for entry in merged(log)]
        given_up = {event.replica for _, event in entries if isinstance(event, ReplicaReclaimed)}
        # What a replica had begun when it was given up stays open.
        events = [e for by, e in entries if not (by in given_up and isinstance(e, EffectIntended | EffectFinished))]
        once(events, whole=not any(log.kept_from(name) for name in log.journals()))
        if left := sorted(shells):
            raise Fault(f"sandboxes are left: {left}")
        if not any(isinstance(event, RunFinished) for event in events):
            failed = [event.reason for event in events if isinstance(event, RunFailed)]
            raise Fault(f"the run did not finish: {failed}")
        if wanted is not None:
            same(digests(events), wanted)

    def _still_there(self, log: FileLog) -> None:
        for journal, frames in self._acknowledged.items():
            kept_from = log.kept_from(journal)
            reader = log.open_reader(journal, from_sequence=kept_from)
            found: dict[int, tuple[int, bytes]] = {}
            while some := reader.read():
                found |= {f.base_sequence: (len(f.events), content(f.events)) for f in some if f.events}
            reader.close()
            if missing := sorted(
                base for base, frame in frames.items() if base >= kept_from and found.get(base) != frame
            ):
                raise Fault(f"{journal}: the frame at {missing[0]} was acknowledged, and is not there or another")


def once(events: Sequence[AnyEvent | UnknownEvent], *, whole: bool) -> None:
    """Nothing happened twice, nothing that began did not end. Raises ``Fault``."""
    seen: Counter[tuple[object, ...]] = Counter()
    opened: dict[str, int] = {}
    graded: set[str] = set()
    for event in events:
        kind = type(event).__name__
        match event:
            case StepOpened() | BatchSealed() | BatchShort() | ValuesEstimated() | CriticUpdated() | ActorUpdated():
                seen[kind, event.step] += 1
            case TurnSampled() | TurnExecuted():
                seen[kind, event.trial, event.turn] += 1
            case (
                SandboxRequested()
                | SandboxReady()
                | SandboxSealed()
                | SandboxReclaimed()
                | EpisodeEnded()
                | Graded()
                | TrajectoryAssembled()
            ):
                seen[kind, event.trial] += 1
            case WeightsPublished():
                seen[kind, event.version, event.version_index] += 1
            case EffectIntended():
                opened[event.key] = opened.get(event.key, 0) + 1
            case EffectFinished() | TimerFired():
                opened[event.key] = opened.get(event.key, 0) - 1
            case _:
                pass
        if isinstance(event, Graded) and event.outcome == "graded":
            graded.add(event.trial)
        if isinstance(event, BatchSealed):
            trials = [item.trial for item in event.items]
            if trials != sorted(set(trials), key=lambda trial: int(trial.partition(".t")[2])):
                raise Fault(f"step {event.step}: its batch is not in trial order, or holds a trial twice: {trials}")
            if not graded.issuperset(trials):
                raise Fault(f"step {event.step}: trials are trained that were never graded")
    if twice := next((what for what, count in seen.items() if count > 1), None):
        raise Fault(f"{' '.join(map(str, twice))} happened {seen[twice]} times")
    # Of a trimmed journal the beginnings are gone: there an effect may be seen to end that was not seen to begin.
    if uneven := sorted(key for key, count in opened.items() if (count if whole else count > 0)):
        raise Fault(f"effects began and did not end, or ended twice: {uneven[:5]}")


def digests(events: Iterable[AnyEvent | UnknownEvent]) -> Digests:
    """Of every step: its batch, and critic and actor after it."""
    found: Digests = []
    for event in events:
        match event:
            case BatchSealed():
                found.append(("batch", event.step, event.digest))
            case CriticUpdated():
                found.append(("critic", event.step, event.weights_after))
            case ActorUpdated():
                found.append(("actor", event.step, event.weights_after))
            case _:
                pass
    return sorted(found)


def same(found: Digests, wanted: Digests) -> None:
    """Raises ``Fault`` naming the first step and part that differs."""
    differing = sorted(set(found) ^ set(wanted), key=lambda entry: entry[1])
    if differing:
        part, step, _ = differing[0]
        raise Fault(f"step {step}: the {part}'s digest is not that of an undisturbed run")
