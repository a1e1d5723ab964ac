"""An actor that remembers what it saw, decided on and performed, and a world in which a driver speaks to it."""

from dataclasses import dataclass, field
from typing import ClassVar

from t1actors.events import AnyEvent, GenerationQuiesced
from t1actors.runtime.actor import NOTHING, Effect
from tests.runtime.toys import Toy, number
from tests.runtime.worlds import World


class Act(Effect, frozen=True, kw_only=True):
    pass


@dataclass
class Seen:
    events: list[AnyEvent] = field(default_factory=list)


class Recorder(Toy):
    """Folds everything into a list; what it decides is given by ``answers``: {number: decision}."""

    reads = frozenset({"driver"})
    effect_type = Act
    answers: ClassVar = {}

    def __init__(self, context):
        super().__init__(context)
        self.decided = []
        self.performed = []
        self.state = Seen()

    @property
    def seen(self):
        return self.state.events

    def initial(self):
        return self.state

    def fold(self, state, event):
        state.events.append(event)
        return state

    def decide(self, state, event):
        assert state.events[-1] == event, "decided on before it was folded"
        self.decided.append(event)
        if isinstance(event, GenerationQuiesced):
            return self.answers.get(event.step, NOTHING)
        return NOTHING

    async def perform(self, effect, performing):
        self.performed.append((effect.key, performing.attempt))
        return [number(100, "world")]


def recorder(**answers):
    return type("Scripted", (Recorder,), {"answers": {int(k[1:]): v for k, v in answers.items()}})


def driven(*numbers):
    """A world in which the driver has said ``numbers``, one frame each."""
    world = World()
    world.introduce("driver", "actor")
    for n in numbers:
        world.say("driver", number(n, "driver"), rests_on={"supervisor": 0})
    return world
