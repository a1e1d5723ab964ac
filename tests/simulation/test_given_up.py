"""A replica of the sampler is given up, and comes back with the resumed run."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from t1actors.config import resolve
from t1actors.events import Event, LogTrimmed, ReplicaReclaimed, StepOpened, TurnSampled, decode
from t1actors.log.check import check_journals
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.runtime.clock import run_virtual
from t1actors.runtime.snapshots import stranded
from tests.simulation.delays import Delays
from tests.simulation.run import SETS, scheduled
from tests.simulation.universe import Universe

GIVEN_UP, BACK = 4, 9
"""In which steps."""
MORE = (
    "run.restart_budget=3",
    "schedule.evaluate=false",
    "schedule.warmup_steps=0",
    "schedule.recalibrate_steps=0",
    "schedule.train_steps=13",
)
E = TypeVar("E", bound=Event)


def simulated(root: Path, *sets: str, before_it_is_back: Callable[[FileLog], object] = lambda log: None) -> FileLog:
    """The log of a run whose ``sampler1`` comes back in the second session."""
    config = resolve(preset="nano", sets=(*SETS, *MORE, *sets)).config
    universe = Universe(root, config, Delays(random.Random(0), scale=0.0), exact=False, mishaps=False)

    async def main() -> None:
        with anyio.fail_after(3000):
            async with anyio.create_task_group() as universe.nursery:
                universe.oracle.stop = universe.end
                universe.nursery.start_soon(give_it_up)
                assert await universe.session() is None
                result = await universe.session()
                assert result is not None
                assert result.reason == "finished", result.detail
                universe.end()

    async def give_it_up() -> None:
        await opened(GIVEN_UP)
        universe.cursed = "sampler1"
        universe.kill(universe.children["sampler1"].incarnation, "cursed")
        await opened(BACK)
        before_it_is_back(universe.filelog())
        universe.kill_supervisor(linger_s=0.0)

    async def opened(step: int) -> None:
        while True:
            await anyio.sleep(1.0)
            if any(event.step == step for event in events_of(universe.filelog(), StepOpened)):
                return

    with universe.powered(), scheduled(0):
        run_virtual(main)
        universe.oracle.judge(universe.filelog(), universe.fileblobs(), universe.shells, None)
    assert [event.replica for event in events_of(universe.filelog(), ReplicaReclaimed)] == ["sampler1"]
    return universe.filelog()


def events_of(log: FileLog, kind: type[E]) -> list[E]:
    return [event for entry in merged(log) if isinstance(event := decode(entry.raw), kind)]


@pytest.mark.parametrize("snapshot_every", [1, 100], ids=["all weights stay", "the weights that it had are gone"])
def test_it_samples_again_after_it_missed_several_versions_of_the_weights(tmp_path: Path, snapshot_every: int):
    log = simulated(tmp_path, f"train.snapshot_every={snapshot_every}")
    missed = [step for step in events_of(log, StepOpened) if step.reclaimed]
    assert len({step.version for step in missed}) > 3
    sampled = {int(t.trial.partition(".")[0][1:]) for t in events_of(log, TurnSampled) if t.replica == "sampler1"}
    assert not sampled & {step.step for step in missed}
    assert min(sampled) < missed[0].step
    assert max(sampled) > missed[-1].step


def test_what_it_needs_stays_until_it_is_back_and_is_told_and_goes_then(tmp_path: Path):
    kept_from: list[int] = []

    def before_it_is_back(log: FileLog) -> None:
        told = [trimmed.given_up for trimmed in events_of(log, LogTrimmed)]
        assert told[0] == ()
        assert told[-1] == ("sampler1",)
        assert stranded(log, check_journals(log).reads) == {}
        kept_from.append(log.kept_from("pool"))
        assert kept_from[0] <= log.snapshots("sampler1")[-1].positions["pool"]

    log = simulated(tmp_path, "run.keep_steps=1", "train.snapshot_every=1", before_it_is_back=before_it_is_back)
    assert events_of(log, LogTrimmed)[-1].given_up == ()
    assert log.kept_from("pool") > kept_from[0]
