"""A step's bytes do not depend on how many processes computed it, and no process is left when one of them dies.

One crew of four serves all tests: what is slow is loading torch. The last test of the file kills one of its workers.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from t1actors.config import TrainConfig
from t1actors.models.gradients import Gradients
from t1actors.train import actor_step as actor_module
from t1actors.train.actor_step import ActorResult, actor_step
from t1actors.train.batch import Batch
from t1actors.train.crew import Crew
from t1actors.train.critic_step import CriticResult, Values, critic_step, estimate_values
from t1actors.train.errors import NonFiniteError, RanksError
from t1actors.train.ranks import ALONE, GlooRanks, divided
from t1actors.train.state import TrainerState
from t1actors.train.trainer import Trainer
from tests.train.test_layout import BATCH, DTYPES, POLICY, VALUES, VERSION
from tests.train.tiny_batches import TRAIN, critic_state, policy_state, tiny_policy, with_actor

TWO_EPOCHS = with_actor(epochs=2)


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(4, what="the test's crew") as started:
        yield started


@dataclass(frozen=True, eq=False)
class Case:
    config: TrainConfig
    dtype: str
    batch: Batch

    @property
    def values_T(self):
        return VALUES[: self.batch.sampled]

    def actor(self, step: Callable[..., ActorResult]) -> ActorResult:
        # in bfloat16 the state's own version is another than the one that sampled, whose log-probs are then taken apart
        behaviours = {VERSION: POLICY.weights()} if self.dtype == "bfloat16" else {}
        network = tiny_policy(dtype=DTYPES[self.dtype])
        return step(network, policy_state(POLICY), behaviours, self.batch, self.values_T, self.config, seed=0, step=0)

    def critic(self, step: Callable[..., CriticResult]) -> CriticResult:
        network, state = critic_state(tiny_policy(dtype=DTYPES[self.dtype]))
        return step(network, state, self.batch, self.values_T, self.config, seed=0, step=0)

    def values(self, estimate: Callable[..., Values]) -> Values:
        network, state = critic_state(tiny_policy(dtype=DTYPES[self.dtype]))
        masters = {n: t + 0.1 if n == "value_head.weight" else t for n, t in state.weights.items()}
        return estimate(network, replace(state, weights=masters), self.batch, self.config)

    @functools.cached_property
    def alone(self) -> tuple[Values, CriticResult, ActorResult]:
        """What one process computes."""
        return self.values(estimate_values), self.critic(critic_step), self.actor(actor_step)


CASES = {
    "float32": Case(TWO_EPOCHS, "float32", BATCH),
    "bfloat16": Case(TWO_EPOCHS, "bfloat16", BATCH),
    "recomputed": Case(replace(TRAIN, recompute_layers=True, micro_batch_ids=1), "float32", BATCH),
    "ranks without work": Case(TRAIN, "float32", BATCH.without(*(f"s0.t{n}" for n in range(8) if n not in (0, 3)))),
}
"""``BATCH`` has an expert without rows, a trial of one token, and trials longer than a grain."""


def same(left: TrainerState, right: TrainerState) -> bool:
    pairs = [(left.weights, right.weights), (left.first, right.first), (left.second, right.second)]
    return left.updates == right.updates and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs
    )


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", list(CASES))
def test_any_number_of_ranks_gives_the_bytes_of_one_process(crew: Crew, size: int, name: str) -> None:
    case = CASES[name]
    values, critic, actor = case.alone
    crew.join(size)
    found = case.values(crew.estimate_values)
    assert np.array_equal(found.values_T, values.values_T)
    assert replace(found, values_T=values.values_T) == values

    found = case.critic(crew.critic_step)
    assert found.report == critic.report
    assert same(found.state, critic.state)

    found = case.actor(crew.actor_step)
    assert np.array_equal(found.report.tokens, actor.report.tokens)
    assert replace(found.report, tokens=actor.report.tokens) == actor.report
    assert same(found.state, actor.state)
    assert all(torch.equal(found.weights[name], actor.weights[name]) for name in actor.weights)
    assert found.report.weights_after != found.report.weights_before


def test_a_worker_goes_on_from_the_state_it_has(crew: Crew) -> None:
    """What it is not sent again is what it computed."""
    crew.join(2)
    network, state = critic_state(POLICY)
    apart, apart_state = critic_state(POLICY)
    for step in range(2):
        state = crew.critic_step(network, state, BATCH, VALUES, TRAIN, seed=0, step=step).state
        apart_state = critic_step(apart, apart_state, BATCH, VALUES, TRAIN, seed=0, step=step).state
        assert same(state, apart_state)


def test_shares_are_whole_disjoint_and_near_equal() -> None:
    class Rank:
        size = 3

        def __init__(self, rank: int) -> None:
            self.rank = rank

    places = (7, 0, 5, 2, 3, 1)
    shares = [divided(BATCH, places, Rank(rank)) for rank in range(3)]  # type: ignore[arg-type]
    assert sorted(place for share in shares for place in share) == sorted(places)
    assert all(share == tuple(place for place in places if place in share) for share in shares)
    held = [sum(BATCH.trials[place].ids for place in share) for share in shares]
    assert max(held) <= 130 + min(held) / 2
    assert divided(BATCH, places, ALONE) == places


def together(folder: Path, size: int, act: Callable[[GlooRanks], None], *, timeout_s: float = 30.0) -> list[str]:
    """``act`` on each of ``size`` ranks, threads of this process; what they raised."""
    failures: list[str] = []

    def one(rank: int) -> None:
        ranks = GlooRanks(folder / "meeting", rank, size, timeout_s=timeout_s)
        try:
            act(ranks)
        except RanksError as error:
            failures.append(str(error))
        finally:
            ranks.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_streams_arrive_with_every_bit(tmp_path: Path) -> None:
    odd = np.array([0x7FC12345, 0x80000000, 0xFF800000, 0x00000001, 0x3F800000], dtype=np.uint32).view(np.float32)
    owned = [[np.array([1, 3])], [np.array([4]), np.array([6])], []]
    whole_n = np.array([1, 3, 4, 6])
    found: dict[int, np.ndarray] = {}

    def act(ranks: GlooRanks) -> None:
        stream_T = np.full(7, 9.0, dtype=np.float32)
        for tokens_n in owned[ranks.rank]:
            stream_T[tokens_n] = odd[np.searchsorted(whole_n, tokens_n)]
        ranks.share([stream_T], owned[ranks.rank], whole_n)
        found[ranks.rank] = stream_T

    assert together(tmp_path, 3, act) == []
    for stream_T in found.values():
        assert np.array_equal(stream_T[whole_n].view(np.uint32), odd[:4].view(np.uint32))
        assert np.all(stream_T[[0, 2, 5]] == 9.0)


def test_sums_and_their_bounds_become_those_of_all_ranks(tmp_path: Path) -> None:
    shapes = {"large": torch.Size([512, 300]), "small": torch.Size([3, 2])}
    found: dict[int, Gradients] = {}

    def act(ranks: GlooRanks) -> None:
        gradients = Gradients(shapes)
        for total in gradients.sums.values():
            total.add(torch.full(total.sum.shape, 2.0**-40 + ranks.rank, dtype=torch.float64))
        gradients.sums["small"].note(float("nan") if ranks.rank == 1 else 0.5, 2)
        ranks.merge(gradients)
        found[ranks.rank] = gradients

    assert together(tmp_path, 3, act) == []
    for gradients in found.values():
        for total in gradients.sums.values():
            assert torch.all(total.sum == 3 * 2.0**-40 + 3)
        assert (gradients.sums["large"].largest, gradients.sums["large"].partials) == (2 + 2.0**-40, 3)
        assert (gradients.sums["small"].largest, gradients.sums["small"].partials) == (float("inf"), 9)


def test_a_rank_that_never_comes_is_not_waited_for_longer_than_was_said(tmp_path: Path) -> None:
    came = threading.Event()

    def act(ranks: GlooRanks) -> None:
        if ranks.rank == 1:
            came.wait(30)  # stuck
            return
        try:
            ranks.merge(Gradients({"w": torch.Size([4])}))
        finally:
            came.set()

    (failure,) = together(tmp_path, 2, act, timeout_s=0.5)
    assert "rank 0 of 2: the sum of the gradients failed" in failure


def test_a_gradient_that_is_not_finite_ends_the_step_on_every_rank(tmp_path: Path) -> None:
    """Also on the one that did not see the token that makes it so."""
    trial = next(t for t in BATCH.trials if t.trial == "s0.t2")
    values_T = VALUES.copy()
    values_T[trial.first] = np.nan
    failures: list[str] = []

    def act(ranks: GlooRanks) -> None:
        network, state = tiny_policy(), policy_state(POLICY)
        with pytest.raises(NonFiniteError) as raised:
            actor_step(network, state, {}, BATCH, values_T, with_actor(minibatches=1), seed=0, step=3, ranks=ranks)
        failures.append(str(raised.value))

    assert together(tmp_path, 2, act) == []
    assert len(failures) == 2
    assert all("step 3, actor, update 1: the gradient of" in text for text in failures)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_end(pids: Iterable[int]) -> bool:
    """Whether these processes are gone, or will be in a moment: they were killed, and the kernel takes its time."""
    pids, until_s = list(pids), time.monotonic() + 30
    while not all(map(ended, pids)) and time.monotonic() < until_s:
        time.sleep(0.01)
    return all(map(ended, pids))


def test_a_worker_killed_in_mid_step_ends_the_step_with_its_rank_and_leaves_nothing(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.join(4)
    pids = crew.pids
    apply = Trainer.apply

    def kill_and_apply(self: Trainer):
        os.kill(pids[2], signal.SIGKILL)
        return apply(self)

    monkeypatch.setattr(actor_module.Trainer, "apply", kill_and_apply)
    with pytest.raises(RanksError, match=rf"rank 2 of the test's crew \(process {pids[2]}\) died"):
        CASES["float32"].actor(crew.actor_step)
    assert sorted(pids) == [1, 2, 3]
    assert all_end(pids.values())
    assert crew.pids == {}


@pytest.mark.slow
def test_after_the_workers_were_killed_the_next_step_has_new_ones() -> None:
    case = CASES["ranks without work"]
    with Crew(3, what="the crew") as crew:
        case.values(crew.estimate_values)
        first = crew.pids
        command = int(Path(f"/proc/{first[1]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(command, signal.SIGKILL)
        with pytest.raises(RanksError, match=r"rank 1 of the crew .* died.*; rank 2 of the crew .* died"):
            case.critic(crew.critic_step)
        assert all_end(first.values())
        assert case.critic(crew.critic_step).report == case.alone[1].report
        assert not set(crew.pids.values()) & set(first.values())


PARENT = """
import os, signal
from t1actors.train.crew import Crew
crew = Crew(3, what="the crew")
crew.join(3)
print(*crew.pids.values(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_no_worker_outlives_the_process_that_started_it() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pids = [int(text) for text in done.stdout.split()]
    assert len(pids) == 2
    assert all_end(pids)
