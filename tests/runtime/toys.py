"""Toy actors: source -> triple -> sink, each a dozen lines, with the number carried by GenerationQuiesced.step."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from t1actors.events import EffectFinished, GenerationQuiesced, RunFinished, RunStarted
from t1actors.runtime.actor import NOTHING, Decision, Effect


def number(value, by):
    return GenerationQuiesced(step=value, replica=by)


class Toy:
    """An actor with nothing in it."""

    reads = frozenset()
    effect_type = Effect

    def __init__(self, context):
        self.context = context

    def initial(self):
        return None

    def fold(self, state, event):
        return state

    def decide(self, state, event):
        return NOTHING

    async def perform(self, effect, performing):
        return []

    @asynccontextmanager
    async def running(self):
        yield


class Emit(Effect, frozen=True, kw_only=True):
    first: int
    count: int


class Source(Toy):
    """Emits 0 .. total - 1 by effects, ``count`` numbers each, one effect after the other."""

    effect_type = Emit
    total = 120
    count = 3

    def initial(self):
        return {"next": 0, "begun": False}

    def fold(self, state, event):
        if isinstance(event, GenerationQuiesced):
            assert event.step == state["next"], f"number {event.step} where {state['next']} is next"
            state["next"] += 1
        if isinstance(event, RunStarted):
            state["begun"] = True
        return state

    def decide(self, state, event):
        begins = isinstance(event, RunStarted) and not event.resumed
        if (begins or isinstance(event, EffectFinished)) and state["next"] < self.total:
            first = state["next"]
            return Decision(effects=[Emit(key=f"emit/{first}", first=first, count=min(self.count, self.total - first))])
        return NOTHING

    async def perform(self, effect, performing):
        return [number(n, "source") for n in range(effect.first, effect.first + effect.count)]


class Triple(Toy):
    reads = frozenset({"source"})

    def decide(self, state, event):
        if isinstance(event, GenerationQuiesced):
            return Decision(events=[number(3 * event.step, "triple")])
        return NOTHING


@dataclass
class Received:
    numbers: list[int] = field(default_factory=list)


class Sink(Toy):
    """Ends the run when it has all."""

    reads = frozenset({"triple"})

    def initial(self):
        return Received()

    def fold(self, state, event):
        if isinstance(event, GenerationQuiesced):
            state.numbers.append(event.step)
        return state

    def decide(self, state, event):
        if isinstance(event, GenerationQuiesced) and len(state.numbers) == Source.total:
            return Decision(events=[RunFinished(steps=len(state.numbers), version="")])
        return NOTHING


CHAIN = [("source", Source), ("triple", Triple), ("sink", Sink)]
