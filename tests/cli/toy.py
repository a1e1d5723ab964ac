"""A publisher that needs nobody: it opens no step, waits a moment and says that the run is finished (or has failed).

With ``run.seed=7`` the first session goes on until somebody stops it; later ones end by themselves. With 13 it fails.
"""

from contextlib import asynccontextmanager

from t1actors.events import RunFailed, RunFinished, RunPaused, RunStarted, StopRequested, TimerFired
from t1actors.runtime.actor import NOTHING, Decision, Wait


class Publisher:
    reads = frozenset()
    effect_type = Wait

    def __init__(self, context):
        self._seed = context.config.run.seed

    def initial(self):
        return None

    def fold(self, state, event):
        return event if isinstance(event, RunStarted) else state

    def decide(self, state, event):
        match event:
            case TimerFired(key="end"):
                end = RunFailed(step=0, reason="seed 13") if self._seed == 13 else RunFinished(steps=0, version="none")
                return Decision(events=[end])
            case StopRequested():
                return Decision(events=[RunPaused(step=0, session=state.session)])
            case _ if type(event).__name__ == "ActorReady" and (self._seed != 7 or state.resumed):
                return Decision(effects=[Wait(key="end", seconds=0.05)])
            case _:
                return NOTHING

    async def perform(self, effect, performing):
        raise AssertionError(effect)

    @asynccontextmanager
    async def running(self):
        yield
