"""The actors of a run in rows: one each while there is room, replicas of one actor together, all in one row otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from t1actors.observe.lines import Part, Script, row
from t1actors.observe.view import ActorView, Intent, RunView

DOING = {
    "create": "creating",
    "sample": "sampling",
    "run": "running",
    "seal": "sealing",
    "grade": "grading",
    "kill": "reclaiming",
    "load": "loading weights",
    "initial": "loading",
    "assemble": "assembling",
    "export": "exporting",
    "values": "estimating values",
    "critic": "training",
    "actor": "training",
}
"""Last part of an effect's key to what the actor does. Another word stands for itself."""
NAMED = 2
"""Replicas in trouble that are named."""


@dataclass(frozen=True)
class CrewRow:
    """A row's text, whether the actor is at work, and whether it is in trouble."""

    text: str
    busy: bool
    bad: bool


def crew(view: RunView, width: int, script: Script) -> list[CrewRow]:
    """A row for each actor that was started; replicas (sampler, sampler1, ...) share one."""
    groups: dict[str, list[ActorView]] = {}
    for actor in _started(view):
        groups.setdefault(actor.name.rstrip("0123456789"), []).append(actor)
    return [_group(name, members, width, script) for name, members in groups.items()]


def crew_in_one_row(view: RunView, width: int, script: Script) -> CrewRow | None:
    """All actors in a row, those in trouble first to be kept."""
    actors = _started(view)
    if not actors:
        return None
    parts: list[Part] = []
    others: Counter[str] = Counter()
    for actor in actors:
        if _died(actor) or actor.phase == "starting":
            parts.append(Part(f"{actor.name} {_state(actor)}", 0))
        elif doing := _doing([actor]):
            parts.append(Part(f"{actor.name} {doing}", 1))
        else:
            others["idle" if actor.phase == "ready" else "stopped"] += 1
    parts += [Part(f"{count} {state}", 2) for state, count in others.items()]
    return CrewRow(row("actors", parts, width, script), others["idle"] < len(actors), any(map(_died, actors)))


def work(intent: Intent) -> str:
    """What an open effect is, in words: "pool: creating s0.t0"."""
    subject, _, verb = intent.key.rpartition("/")
    subject = subject.replace("step/", "step ").replace("barrier/", "before step ")
    return f"{intent.actor}: {DOING.get(verb, verb)} {subject}".rstrip()


def _started(view: RunView) -> list[ActorView]:
    return [actor for actor in view.actors.values() if actor.starts]


def _group(name: str, members: Sequence[ActorView], width: int, script: Script) -> CrewRow:
    up = sum(actor.phase == "ready" for actor in members)
    doing = _doing(members)
    meter: tuple[float, float] | None = None
    if len(members) == 1:
        (actor,) = members
        parts = [Part(doing or "idle" if up else _state(actor))]
        if up and (known := next((i for i in actor.intents.values() if i.total), None)) is not None:
            assert known.total is not None
            meter = (known.done, known.total)
            parts.append(Part(f"{known.done:g}/{known.total:g} {known.unit}".rstrip(), 1))
    else:
        down = [f"{actor.name} {_state(actor)}" for actor in members if actor.phase != "ready"]
        parts = [Part(f"{up} of {len(members)} up" if down else f"{up} up")]
        parts += [Part(doing or "idle", 2)] if up else []
        parts += [Part(text, 1) for text in down[:NAMED]]
        parts += [Part(f"{len(down) - NAMED} more down", 1)] if len(down) > NAMED else []
    if restarts := sum(actor.restarts for actor in members):
        parts.append(Part(f"restarted {restarts}x", 1))
    label = name if len(members) == 1 else f"{name}s"
    if len(members) == 1:
        label = members[0].name
    return CrewRow(row(label, parts, width, script, meter=meter), bool(doing), any(map(_died, members)))


def _state(actor: ActorView) -> str:
    if actor.phase == "starting":
        return "starting"
    return f"stopped, {actor.exits[-1]}" if _died(actor) else "stopped"


def _died(actor: ActorView) -> bool:
    return actor.phase == "stopped" and bool(actor.exits) and not actor.exits[-1].startswith("exit 0")


def _doing(actors: Iterable[ActorView]) -> str:
    busy: Counter[str] = Counter()
    for actor in actors:
        if actor.phase == "ready":
            for verb, count in actor.busy.items():
                busy[DOING.get(verb, verb)] += count
    return ", ".join(f"{words} {n}" if n > 1 else words for words, n in busy.most_common(3) if n > 0)
