"""A publisher that needs nobody: it opens no step, waits a moment and says that the run is finished (or has failed)."""

from contextlib import asynccontextmanager

from t1actors.events import RunFailed, RunFinished, TimerFired
from t1actors.runtime.actor import NOTHING, Decision, Wait


class Publisher:
    reads = frozenset()
    effect_type = Wait

    def __init__(self, context):
        self._fails = context.config.run.seed == 13

    def initial(self):
        return False

    def fold(self, state, event):
        return state

    def decide(self, state, event):
        match event:
            case TimerFired(key="end"):
                end = RunFailed(step=0, reason="seed 13") if self._fails else RunFinished(steps=0, version="none")
                return Decision(events=[end])
            case _ if type(event).__name__ == "ActorReady":
                return Decision(effects=[Wait(key="end", seconds=0.05)])
            case _:
                return NOTHING

    async def perform(self, effect, performing):
        raise AssertionError(effect)

    @asynccontextmanager
    async def running(self):
        yield
