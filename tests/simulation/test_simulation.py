"""Simulated runs: the whole actor graph on virtual time, with everything going wrong that the seed says.

``python -m tests.simulation --seed N`` shows one again; ``--planted NAME --seed N`` with a bug in the code.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.oracle import Fault
from tests.simulation.planted import PLANTED, Planted
from tests.simulation.run import Variant, simulate, undisturbed

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("seed", range(8))
def test_whatever_dies_whenever_nothing_is_lost_and_nothing_happens_twice(seed: int):
    simulate(seed)


def test_power_cuts_take_turns_that_are_sampled_again():
    assert all(simulate(seed).turns_lost for seed in (10, 23, 30))


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_seeds(hundred: int):
    deaths = 0
    for seed in range(100 * hundred, 100 * hundred + 100):
        deaths += len(simulate(seed).deaths)
    assert deaths > 200


def found(planted: Planted, seeds: list[int]) -> int | None:
    """The first of ``seeds`` that finds the bug."""
    for seed in seeds:
        try:
            simulate(seed, planted=planted.planted)
        except Fault:
            return seed
    return None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted):
    seeds = [planted.found_by, *(seed for seed in range(planted.seeds) if seed != planted.found_by)]
    assert found(planted, seeds) is not None, f"not within {planted.seeds} seeds"


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found_within_the_stated_seeds(planted: Planted):
    assert found(planted, list(range(planted.seeds))) is not None


def test_a_seed_gives_the_same_journals_in_any_process():
    digests = {
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "3"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len({text.partition(" events")[2] for text in digests}) == 1, digests


def test_the_same_run_whatever_is_flushed():
    machine, process = (undisturbed(Variant(exact=True, durability=name)) for name in ("machine", "process"))
    assert machine.digests == process.digests
    assert len({step for _, step, _ in machine.digests}) == 9
