"""Bugs put into the real code on purpose: each must be found within the number of seeds that stands with it.

Each breaks one rule of the log, the runtime or an actor, in the way in which somebody might write it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeAlias

import pytest

from t1actors.actors import assembler, pool, sampler, training
from t1actors.actors.publisher import Publisher
from t1actors.actors.sampler import Sampler, turn_seed
from t1actors.events import EffectFinished
from t1actors.log import aside, lock, recovery
from t1actors.log.blobs import FileBlobs
from t1actors.log.causal import CausalReader
from t1actors.log.file_writer import FileJournalWriter
from t1actors.runtime import host
from t1actors.runtime.committer import Committer
from t1actors.runtime.effects import Effects
from t1actors.runtime.intents import Intents
from t1actors.runtime.snapshots import Taken
from t1actors.runtime.volatile import NamedBlobs
from tests.simulation import universe

Patch: TypeAlias = pytest.MonkeyPatch


@dataclass(frozen=True)
class Planted:
    """``seeds``: so many from 0 on are enough; ``found_by`` is the first of them that finds it."""

    plant: Callable[[Patch], None]
    found_by: int
    seeds: int

    @property
    def name(self) -> str:
        return self.plant.__name__

    @contextmanager
    def planted(self) -> Generator[None]:
        """The bug is in the code for the length of the block."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            yield


# --- the log ------------------------------------------------------------------------------------------------------------


def acknowledged_before_it_is_flushed(patch: Patch) -> None:
    _after(patch, FileJournalWriter, lambda writer: setattr(writer, "_flushes", False))


def a_torn_tail_is_called_damage(patch: Patch) -> None:
    def refuse(scan: recovery._Scan, segment: int, data: memoryview, offset: int) -> None:
        raise scan._fault

    patch.setattr(recovery._Scan, "_refuse_frames_behind", refuse)


def blobs_named_before_they_are_durable(patch: Patch) -> None:
    _after(patch, FileBlobs, lambda blobs: setattr(blobs, "_flushes", False))


def lost_turns_are_not_looked_for(patch: Patch) -> None:
    patch.setattr(NamedBlobs, "needed", lambda self: set())


def two_writers_of_one_journal(patch: Patch) -> None:
    patch.setattr(lock, "_take", lambda descriptor: True)


def read_before_others_recovered(patch: Patch) -> None:
    """After a power cut, journals are read whose durable ends lag."""
    settle = universe.settle_after_loss

    def settle_nothing(run_dir, boot_id, durability) -> None:
        if durability == "process":
            settle(run_dir, boot_id, durability)

    patch.setattr(universe, "settle_after_loss", settle_nothing)


def a_cut_that_is_not_consistent(patch: Patch) -> None:
    """Each journal is cut where it is torn; that others rest on what is gone is not asked."""
    patch.setattr(aside, "greatest_cut", lambda journals, begins: {n: len(marks) for n, marks in journals.items()})


def no_hold_back(patch: Patch) -> None:
    """A frame is delivered before those that it rests on."""
    patch.setattr(CausalReader, "_missing", lambda self, frame: None)


# --- the runtime --------------------------------------------------------------------------------------------------------


def acts_before_the_intent_is_durable(patch: Patch) -> None:
    def hasty(committer: Committer) -> None:
        take, durable = committer._ledger.take, committer._durable
        committer._durable = lambda batch, wall_ns: None

        def take_and_act(*, all_of_it: bool = False):
            batch = take(all_of_it=all_of_it)
            if batch is not None:
                durable(batch, 0)
            return batch

        committer._ledger.take = take_and_act

    _after(patch, Committer, hasty)


def a_snapshot_forgets_what_is_under_way(patch: Patch) -> None:
    whole = Taken.now

    def now(state, positions, intents) -> Taken:
        return replace(whole(state, positions, intents), intents=[])

    patch.setattr(Taken, "now", now)


def an_input_is_applied_again_after_a_restart(patch: Patch) -> None:
    _recovered(patch, lambda position: max(0, position - 1))


def an_input_is_skipped_after_a_restart(patch: Patch) -> None:
    _recovered(patch, lambda position: position + 1 if position else 0)


def open_intents_are_forgotten(patch: Patch) -> None:
    patch.setattr(Intents, "all", lambda self: [])


def own_results_are_not_recovered(patch: Patch) -> None:
    """A recovery folds what others said and forgets that an effect had finished."""
    patch.setattr(Intents, "fold", _unless_recovering(Intents.fold))


def stuck_work_is_not_noticed(patch: Patch) -> None:
    def unwatched(self: Effects, effect, performing, progress):
        return self._performer.perform(effect, performing)

    patch.setattr(Effects, "_watched", unwatched)


# --- the actors ---------------------------------------------------------------------------------------------------------


def another_seed_for_each_attempt(patch: Patch) -> None:
    attempts: Counter[tuple[int, int]] = Counter()

    def seed(trial_seed: int, turn: int) -> int:
        attempts[trial_seed, turn] += 1
        return turn_seed(trial_seed, turn) + attempts[trial_seed, turn] - 1

    patch.setattr(sampler, "turn_seed", seed)


def a_restarted_replica_samples_from_old_weights(patch: Patch) -> None:
    def running(self: Sampler):
        return self._engine.running()

    patch.setattr(Sampler, "running", running)


def a_command_runs_again_after_a_restart(patch: Patch) -> None:
    """The pool's key for a command names the attempt, too."""
    asked: Counter[tuple[str, int]] = Counter()
    request_of = pool.Pool._request_of

    def another(self, trial: str, turn: int, command: str):
        request = request_of(self, trial, turn, command)
        asked[trial, turn] += 1
        return type(request)(key=f"{request.key}#{asked[trial, turn]}", command=command, limit_s=request.limit_s)

    patch.setattr(pool.Pool, "_request_of", another)


def a_batch_in_order_of_arrival(patch: Patch) -> None:
    patch.setattr(assembler, "sorted", lambda values, key=None: list(values), raising=False)


def a_state_is_deleted_that_a_restart_needs(patch: Patch) -> None:
    patch.setattr(training, "KEPT_LATEST", 0)


def the_newest_weights_instead_of_those_before(patch: Patch) -> None:
    """A publisher that was away finds the step before trained already, and samples from it."""
    patch.setattr(Publisher, "_version_for", lambda self, state, step: self._latest(state, step, upto=step - 1))


PLANTED = (
    Planted(acknowledged_before_it_is_flushed, found_by=0, seeds=20),
    Planted(a_torn_tail_is_called_damage, found_by=0, seeds=20),
    Planted(blobs_named_before_they_are_durable, found_by=0, seeds=40),
    Planted(lost_turns_are_not_looked_for, found_by=0, seeds=20),
    Planted(two_writers_of_one_journal, found_by=18, seeds=40),
    Planted(read_before_others_recovered, found_by=0, seeds=40),
    Planted(a_cut_that_is_not_consistent, found_by=3, seeds=40),
    Planted(no_hold_back, found_by=0, seeds=20),
    Planted(acts_before_the_intent_is_durable, found_by=0, seeds=20),
    Planted(a_snapshot_forgets_what_is_under_way, found_by=0, seeds=20),
    Planted(an_input_is_applied_again_after_a_restart, found_by=0, seeds=20),
    Planted(an_input_is_skipped_after_a_restart, found_by=0, seeds=20),
    Planted(open_intents_are_forgotten, found_by=0, seeds=20),
    Planted(own_results_are_not_recovered, found_by=0, seeds=20),
    Planted(stuck_work_is_not_noticed, found_by=66, seeds=100),
    Planted(another_seed_for_each_attempt, found_by=3, seeds=20),
    Planted(a_restarted_replica_samples_from_old_weights, found_by=0, seeds=20),
    Planted(a_command_runs_again_after_a_restart, found_by=0, seeds=20),
    Planted(a_batch_in_order_of_arrival, found_by=0, seeds=20),
    Planted(a_state_is_deleted_that_a_restart_needs, found_by=0, seeds=20),
    Planted(the_newest_weights_instead_of_those_before, found_by=2, seeds=20),
)


def _unless_recovering(fold):
    """Live, an intent is opened with attempt 1 and closed whatever its attempt; a recovery knows the commit's time."""

    @wraps(fold)
    def folded(self: Intents, event, *, attempt: int, wall_ns: int) -> None:
        if not (wall_ns and isinstance(event, EffectFinished)):
            fold(self, event, attempt=attempt, wall_ns=wall_ns)

    return folded


def _after(patch: Patch, kind: type, change: Callable[..., None]) -> None:
    """Every ``kind`` is changed when it has been made."""
    made = kind.__init__

    @wraps(made)
    def init(self, *arguments, **more) -> None:
        made(self, *arguments, **more)
        change(self)

    patch.setattr(kind, "__init__", init)


def _recovered(patch: Patch, moved: Callable[[int], int]) -> None:
    """A recovery goes on reading other journals somewhere else."""
    recover = host.recover

    def recovered(log, **more):
        found = recover(log, **more)
        found.positions = {name: moved(at) if name != "supervisor" else at for name, at in found.positions.items()}
        return found

    patch.setattr(host, "recover", recovered)
