"""Any process may die at any moment: nothing is lost, nothing is done twice, and every step has the bytes that it has in a
run that nobody disturbed. Real processes, kill -9, real shells."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from t1actors.log.filelog import FileLog
from t1actors.runtime.trim_note import trim_note
from tests.loop.storm import (
    Point,
    died,
    digests,
    events_of,
    in_pairs,
    killed_supervisor,
    occurrences,
    plan_deaths,
    run_once,
    unscathed,
)

pytestmark = pytest.mark.usefixtures("host_makes_sandboxes")

KILLS = 450
SMOKE_KILLS = 50
A_RUN = 3
"""Deaths of one actor in one run, so up to 21 in all."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run_once(run_dir).reason == "finished"
    return run_dir


def test_a_sample_of_the_moments_at_which_an_actor_can_die(undisturbed: Path, tmp_path: Path):
    found = occurrences(undisturbed)
    result = run_once(tmp_path / "run", deaths=plan_deaths(found, found, random.Random(1), a_run=2)[0])
    assert result.reason == "finished", result
    assert len(died(tmp_path / "run")) == result.restarts > 7
    unscathed(tmp_path / "run", digests(events_of(undisturbed)))


@pytest.mark.slow
def test_every_moment_at_which_an_actor_can_die(undisturbed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Every actor x kind of event or effect x {before commit, before act, after act, after the result is durable}, and
    while it recovers: each at least once, and on until there were 450 kills."""
    found, wanted = occurrences(undisturbed), digests(events_of(undisturbed))
    draw = random.Random(2)
    kills: list[Point] = []
    runs = 0
    while len(kills) < KILLS or set(found) - set(kills):
        assert runs < 80, f"these moments never came: {sorted(set(found) - set(kills))}"
        # First what never was; then everything once more.
        for deaths in plan_deaths(found, set(found) - set(kills) or found, draw, A_RUN):
            run_dir = tmp_path / f"run{runs}"
            result = run_once(run_dir, deaths=deaths)
            assert result.reason == "finished", (runs, result)
            unscathed(run_dir, wanted)
            kills += died(run_dir)
            runs += 1
            with capfd.disabled():
                covered = len(set(kills) & set(found))
                print(f"\r{len(kills)} kills in {runs} runs, {covered} of {len(found)} moments", end="", flush=True)
            if len(kills) >= KILLS and not set(found) - set(kills):
                break


@pytest.mark.slow
def test_a_larger_run_through_fifty_deaths(tmp_path: Path):
    assert run_once(tmp_path / "undisturbed", preset="smoke").reason == "finished"
    found, wanted = occurrences(tmp_path / "undisturbed"), digests(events_of(tmp_path / "undisturbed"))
    kills: list[Point] = []
    for number, deaths in enumerate(plan_deaths(found, found, random.Random(3), a_run=4)):
        run_dir = tmp_path / f"run{number}"
        assert run_once(run_dir, preset="smoke", deaths=deaths).reason == "finished"
        unscathed(run_dir, wanted)
        kills += died(run_dir)
        if len(kills) >= SMOKE_KILLS:
            return
    pytest.fail(f"only {len(kills)} died")


@pytest.mark.slow
def test_two_actors_die_in_the_same_instant(undisturbed: Path, tmp_path: Path):
    """Each time another pair, so that neither's successor finds the other as it left it."""
    found, wanted = occurrences(undisturbed), digests(events_of(undisturbed))
    draw = random.Random(6)
    pairs = 0
    for number, deaths in enumerate(plan_deaths(found, found, draw, a_run=1)[:8]):
        run_dir = tmp_path / f"run{number}"
        result = run_once(run_dir, deaths=in_pairs(deaths, draw))
        assert result.reason == "finished", result
        unscathed(run_dir, wanted)
        pairs += result.restarts - len(died(run_dir))
    assert pairs > 25


TRIMMED = ("run.snapshot_events=12", "run.segment_mb=0.004", "run.keep_steps=1", "schedule.train_steps=6")


def through_deaths_while_it_is_trimmed(tmp_path: Path, seed: int, runs: int) -> None:
    assert run_once(tmp_path / "undisturbed", TRIMMED[-1]).reason == "finished"
    found, wanted = occurrences(tmp_path / "undisturbed"), digests(events_of(tmp_path / "undisturbed"))
    for number, deaths in enumerate(plan_deaths(found, found, random.Random(seed), a_run=2)[:runs]):
        run_dir = tmp_path / f"run{number}"
        result = run_once(run_dir, *TRIMMED, deaths=deaths)
        assert result.reason == "finished", result
        assert died(run_dir)
        unscathed(run_dir, wanted)
        assert trim_note(run_dir).first_step > 0
        assert FileLog(run_dir / "log").kept_from("sampler") > 0


def test_actors_die_in_a_run_that_is_trimmed_as_it_goes_on(tmp_path: Path):
    """Each goes on from a snapshot: of what it has folded there is no beginning any more."""
    through_deaths_while_it_is_trimmed(tmp_path, seed=4, runs=1)


@pytest.mark.slow
def test_actors_die_again_and_again_in_runs_that_are_trimmed_as_they_go_on(tmp_path: Path):
    through_deaths_while_it_is_trimmed(tmp_path, seed=5, runs=12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_run_whose_supervisor_is_killed_again_and_again(undisturbed: Path, tmp_path: Path, seed: int):
    """With it all actors die at once, each wherever it is, also in the middle of its recovery."""
    draw = random.Random(seed)
    killed = 0
    while (status := killed_supervisor(tmp_path / "run", draw.uniform(0.5, 6.0 + killed))) is None:
        killed += 1
    assert status == 0
    assert killed >= 2
    unscathed(tmp_path / "run", digests(events_of(undisturbed)))
