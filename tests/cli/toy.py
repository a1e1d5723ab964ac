"""`t1 run` with one toy actor, a publisher that needs nobody: it opens no step, waits a moment and says that the run is
finished (or has failed).

With ``run.seed=7`` the first session goes on until somebody stops it; later ones end by themselves. With 13 it fails.
``python -m tests.cli.toy ARGUMENTS`` is `t1` with it, and writes no report.
"""

import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from t1actors.events import RunFailed, RunFinished, RunPaused, RunStarted, StopRequested, TimerFired
from t1actors.runtime.actor import NOTHING, Decision, Wait

ROOT = Path(__file__).parents[2]


def install(set_attribute=setattr):
    """Let `t1 run` host the toy alone, on a machine that passes all checks."""
    from t1actors.cli import run
    from t1actors.cli.checks import Check
    from t1actors.cli.preflight import Preflight
    from tests.cli.kernels_found import KernelsFound

    async def fine(directory=None, *, settings=None):
        return [Check("sandbox", "good", "works")]

    set_attribute(run, "ACTORS", {"publisher": "tests.cli.toy:Publisher"})
    set_attribute(run, "ACTOR_ENVIRONMENT", {"PYTHONPATH": str(ROOT)})
    set_attribute(run, "sandbox_checks", fine)
    set_attribute(run, "_look_for_kernels", KernelsFound)
    set_attribute(run, "preflight", lambda config, memory_bytes: Preflight(None, ()))


@dataclass
class Session:
    number: int = 0
    resumed: bool = False


class Publisher:
    reads = frozenset()
    effect_type = Wait

    def __init__(self, context):
        self._seed = context.config.run.seed

    def initial(self):
        return Session()

    def fold(self, state, event):
        return Session(event.session, event.resumed) if isinstance(event, RunStarted) else state

    def decide(self, state, event):
        match event:
            case TimerFired(key="end"):
                end = RunFailed(step=0, reason="seed 13") if self._seed == 13 else RunFinished(steps=0, version="none")
                return Decision(events=[end])
            case StopRequested():
                return Decision(events=[RunPaused(step=0, session=state.number)])
            case _ if type(event).__name__ == "ActorReady" and (self._seed != 7 or state.resumed):
                return Decision(effects=[Wait(key="end", seconds=0.05)])
            case _:
                return NOTHING

    async def perform(self, effect, performing):
        raise AssertionError(effect)

    @asynccontextmanager
    async def running(self):
        yield


if __name__ == "__main__":
    from types import SimpleNamespace

    from t1actors.cli.main import main
    from t1actors.observe.figures import figures
    from t1actors.observe.follow import read_run

    def write_report(run_dir, view=None, **_):
        return figures(view or read_run(run_dir))

    # Half of such a run's CPU time would be loading matplotlib.
    sys.modules["t1actors.observe.report"] = SimpleNamespace(write_report=write_report)  # type: ignore[assignment]
    install()
    raise SystemExit(main(sys.argv[1:]))
