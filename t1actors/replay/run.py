"""Replay: run a recorded step again from the log alone, and say "bit-exact" or where it first differs.

    report = replay(Path("runs/demo"), 7)            # report.text(), report.exit_status
    replayer = Replayer.open(Path("runs/demo"))       # many steps: what one computed serves the next
    replayer.step(7, edit=lambda batch: ...)         # what if: another batch, another configuration
    replayer.step(7, inspect=print)                   # every update of the actor, before it is made (inspect_critic: critic)

Guarantees: deterministic; reads the run, never writes to it; uses recorded weights, states, trajectories, rewards and
configuration as inputs and recorded results only to compare with; a step whose ground differs already is reported at the
earlier step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
from t1kernels.choice import KernelsInexact, kernels_called
from t1kernels.hashes import COMBINED, PREFIX, differences, known
from t1kernels.native import NativeUnavailable

from t1actors.config import ConfigError, KernelsName, TrainConfig
from t1actors.log.blobs import FileBlobs
from t1actors.log.errors import LogError, NoteDamaged
from t1actors.log.filelog import FileLog
from t1actors.payloads import Blobs
from t1actors.replay.chain import Chain, Edit, recorded_trajectories
from t1actors.replay.compare import levels_of, locate
from t1actors.replay.inputs import ReplayImpossible, RunInputs, read_inputs
from t1actors.replay.report import Difference, EnvironmentChange, Level, OperationsHere, ReplayReport
from t1actors.runtime.trim_note import TrimNote, trim_note
from t1actors.tito.stored import digest as record_digest
from t1actors.train.batch import Batch, batch_digest
from t1actors.train.environment import environment
from t1actors.train.inspection import Inspect, InspectCritic


class Replayer:
    """Replays steps of one run."""

    def __init__(self, inputs: RunInputs, blobs: Blobs, trimmed: TrimNote | None = None) -> None:
        """``trimmed``: what was deleted of the run on purpose."""
        self.inputs = inputs
        self._blobs = blobs
        model = inputs.config.model
        self._kernels = _there(inputs.kernels, model.kernels)
        self._chain = Chain(inputs, blobs, replace(model, kernels=self._kernels))
        self._trimmed = trimmed or TrimNote(first_step=0, kept_step=0, steps=0)

    @classmethod
    def open(cls, run_dir: Path, progress: Callable[[int, int], None] | None = None) -> Replayer:
        """The run in a directory; ``progress`` hears of events: read, total. Raises ``ReplayImpossible``."""
        if not (run_dir / "log").is_dir():
            raise ReplayImpossible(f"{run_dir} has no folder log/: it is not the directory of a run")
        return cls.of(FileLog(run_dir / "log"), FileBlobs(run_dir / "blobs"), progress)

    @classmethod
    def of(
        cls,
        log: FileLog,
        blobs: Blobs,
        progress: Callable[[int, int], None] | None = None,
        *,
        trimmed: TrimNote | None = None,
    ) -> Replayer:
        """The run of a log and the blobs that it names, wherever they are. As ``open``."""
        try:
            if progress is None:
                inputs = read_inputs(log)
            else:
                total = log.events()
                inputs = read_inputs(log, lambda done: progress(done, total))
            trimmed = trimmed or trim_note(log.root.parent)
        except NoteDamaged as error:
            raise ReplayImpossible(str(error)) from error
        except (LogError, ConfigError, msgspec.DecodeError) as error:
            raise ReplayImpossible(f"{log.root.parent}: {error}") from error
        return cls(inputs, blobs, trimmed)

    def step(
        self,
        number: int,
        *,
        edit: Edit | None = None,
        train: TrainConfig | None = None,
        inspect: Inspect | None = None,
        inspect_critic: InspectCritic | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ReplayReport:
        """Replay one step. Never raises for what is wrong with the run: the report says it.

        Args:
            edit: batch -> batch: the step alone is run on that one, its ground as recorded. ``Batch.without`` and
                ``Batch.of`` make one.
            train: as ``edit``, with another configuration.
            inspect: called with each update of the step's actor before it is made (``train.inspection``); changes no bit,
                and what it raises is raised here.
            inspect_critic: as ``inspect``, with each update of the step's critic, which come before the actor's.
            progress: hears of the steps that must be run again for it: done, total.
        """
        purpose = self.inputs.steps[number].opened.purpose if number in self.inputs.steps else ""
        try:
            if purpose == "evaluate":
                return self._evaluation(number)
            return self._training(number, edit, train, inspect, inspect_critic, progress)
        except ReplayImpossible as error:
            why = str(error)
            if purpose and number < self._trimmed.first_step:
                why = f"what step {number} needs was deleted from the run on purpose: {self.trimmed()}"
            return ReplayReport(number, purpose, impossible=why)

    def batch(self, number: int) -> Batch:
        """The step's batch from the recorded trajectories. Raises ``ReplayImpossible`` naming the trial."""
        return self._chain.batch(number)

    def all(self) -> Iterator[ReplayReport]:
        """Every step of ``numbers``, in order; each begins from what the one before computed."""
        return map(self.step, self.numbers())

    def trimmed(self) -> str:
        """What stays replayable, in one line, when the run was trimmed; else empty."""
        return self._trimmed.text(max(self.inputs.steps, default=None)) if self._trimmed.first_step else ""

    def numbers(self) -> list[int]:
        """Every evaluated or trained step. One that the run's end cut off before anything of it was trained is left
        out, and so are those that were trimmed."""
        return [
            number
            for number, step in sorted(self.inputs.steps.items())
            if number >= self._trimmed.first_step
            and step.sealed is not None
            and (step.opened.purpose == "evaluate" or step.results)
        ]

    def _training(
        self,
        number: int,
        edit: Edit | None,
        train: TrainConfig | None,
        inspect: Inspect | None,
        inspect_critic: InspectCritic | None,
        progress: Callable[[int, int], None] | None,
    ) -> ReplayReport:
        recorded = self.inputs.step(number)
        purpose = recorded.opened.purpose
        self.inputs.sealed(number)
        if not recorded.results:
            raise ReplayImpossible(f"step {number} was not trained: the run ended before ValuesEstimated")
        plan = self._chain.plan(number)
        steps = tuple(planned.step for planned in plan)
        changes, operations = self._environment(), self._operations()
        for done, planned in enumerate(plan):
            if progress is not None:
                progress(done, len(plan))
            target = planned.step == number
            run = (
                self._chain.run(planned, edit=edit, train=train, inspect=inspect, inspect_critic=inspect_critic)
                if target
                else self._chain.run(planned)
            )
            levels = levels_of(self.inputs.step(planned.step), run)
            config = (train if target else None) or self.inputs.config.train
            first = locate(self.inputs, self._blobs, run, levels, config)
            if target or first is not None:
                edited = target and (edit is not None or train is not None)
                return ReplayReport(number, purpose, levels, steps, first, changes, operations, edited)
        raise AssertionError("a plan ends with the step itself")

    def _evaluation(self, number: int) -> ReplayReport:
        """An evaluation trains nothing: its batch is all there is to check."""
        sealed = self.inputs.sealed(number)
        found = recorded_trajectories(self.inputs, self._blobs, number)
        digests = [(record_digest(held), item.reward) for item, held in found]
        level = Level("batch", "batch", sealed.digest, batch_digest(digests))
        first = None
        if not level.equal:
            odd = next((i.trial for (i, _), (d, _) in zip(found, digests, strict=True) if d != i.trajectory_digest), "")
            first = Difference(number, "batch", trial=odd)
        return ReplayReport(number, "evaluate", (level,), (number,), first)

    def _recorded_environments(self) -> dict[str, dict[str, str]]:
        events = {"critic": self.inputs.critic_initial, "actor": self.inputs.actor_initial}
        return {part: event.environment for part, event in events.items() if event is not None}

    def _environment(self) -> tuple[EnvironmentChange, ...]:
        now = environment(self._kernels)
        return tuple(
            EnvironmentChange(part, key, recorded[key], now.get(key, ""))
            for part, recorded in self._recorded_environments().items()
            for key in sorted(recorded)
            if now.get(key, "") != recorded[key] and key != COMBINED and not key.startswith(PREFIX)
        )

    def _operations(self) -> tuple[OperationsHere, ...]:
        now = environment(self._kernels)
        return tuple(
            OperationsHere(part, known(recorded), tuple(differences(recorded, now)))
            for part, recorded in self._recorded_environments().items()
            if known(recorded)
        )


def _there(recorded: str, configured: str) -> KernelsName:
    """Those that trained the run; where they cannot be had, the best there are: the report says that they are others."""
    for name in (recorded, configured):
        try:
            kernels_called(name)
        except (NativeUnavailable, KernelsInexact, ValueError):
            continue
        return cast(KernelsName, name)
    return "auto"


def replay(run_dir: Path, step: int, *, edit: Edit | None = None, train: TrainConfig | None = None) -> ReplayReport:
    """Replay one step of the run in ``run_dir``; never raises for what is wrong with the run: the report says it."""
    try:
        replayer = Replayer.open(run_dir)
    except ReplayImpossible as error:
        return ReplayReport(step, "", impossible=str(error))
    return replayer.step(step, edit=edit, train=train)
