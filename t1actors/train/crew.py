"""Several processes of this machine that compute a step together: this one, and workers that it starts and ends.

Guarantees: what a crew returns has the same bits as the function of the same name on one process; a step whose worker
dies, fails, is stuck or comes to other bytes raises ``RanksError`` with its rank, and leaves no worker behind; no
worker outlives this process. After a failure the next step starts new workers.

A crew of one starts nothing. What a worker has already (the state after the last step, the batch) is not sent again.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from t1actors.config import TrainConfig
from t1actors.models.policy import Policy
from t1actors.models.value import ValueModel
from t1actors.train.actor_step import ActorResult
from t1actors.train.batch import Batch
from t1actors.train.channel import Channel, ChannelClosed, ChannelTimeout, encode
from t1actors.train.critic_step import CriticResult, Values
from t1actors.train.errors import RanksError
from t1actors.train.jobs import (
    Done,
    EstimateValues,
    Failed,
    Job,
    Join,
    Joined,
    N,
    NetworkKind,
    R,
    Ready,
    StepActor,
    StepCritic,
    Task,
)
from t1actors.train.ranks import ALONE, GlooRanks
from t1actors.train.state import Tensors, TrainerState

STUCK_S = 1800.0
"""Longer than loading torch on a crowded machine, and than any share of an update. The death of a rank is noticed at
once and does not wait for this."""
VERDICT_S = 10.0
"""After a failure, how long the workers have to say what they know of it."""
END_S = 10.0


@dataclass
class _Worker:
    rank: int
    channel: Channel
    pid: int | None = None


class Crew:
    """``size`` ranks, this process the first. ``what`` names the crew in errors. Use it from one thread at a time."""

    def __init__(self, size: int, *, what: str) -> None:
        self.size = size
        self._what = what
        self._command: subprocess.Popen[bytes] | None = None
        self._workers: list[_Worker] = []
        self._joined: list[_Worker] = []
        self._ranks: GlooRanks | None = None
        self._state: TrainerState | None = None
        self._batch: Batch | None = None

    # --- the functions of a step ------------------------------------------------------------------------------------------

    def estimate_values(self, network: ValueModel, state: TrainerState, batch: Batch, config: TrainConfig) -> Values:
        """``critic_step.estimate_values``."""
        return self._together(EstimateValues(config), network, state, batch)

    def critic_step(
        self,
        network: ValueModel,
        state: TrainerState,
        batch: Batch,
        values_T: npt.NDArray[np.float32],
        config: TrainConfig,
        *,
        seed: int,
        step: int,
    ) -> CriticResult:
        """``critic_step.critic_step``."""
        return self._together(StepCritic(values_T, config, seed, step), network, state, batch)

    def actor_step(
        self,
        network: Policy,
        state: TrainerState,
        behaviours: Mapping[str, Tensors],
        batch: Batch,
        values_T: npt.NDArray[np.float32],
        config: TrainConfig,
        *,
        seed: int,
        step: int,
    ) -> ActorResult:
        """``actor_step.actor_step``."""
        return self._together(StepActor(behaviours, values_T, config, seed, step), network, state, batch)

    # --- its life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to start the workers, so that the first step does not wait for all of it. Raises ``OSError``."""
        if self.size == 1 or self._command is not None:
            return
        pairs = [socket.socketpair() for _ in range(1, self.size)]
        theirs = [their.fileno() for _, their in pairs]
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        try:
            self._command = subprocess.Popen(
                # -P: what lies in the user's working directory must not stand in for a library.
                [sys.executable, "-P", "-m", "t1actors.train.worker", *map(str, theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=theirs,
                env={**os.environ, **one_thread},
            )
        finally:
            for _, their in pairs:
                their.close()
        self._workers = [_Worker(rank, Channel(our)) for rank, (our, _) in enumerate(pairs, start=1)]

    def join(self, size: int, *, timeout_s: float = STUCK_S) -> None:
        """Let the first ``size`` ranks take the next steps, which changes no bit of them; without this call all do.

        Raises ``RanksError``.
        """
        assert 1 < size <= self.size
        self.start()
        if self._ranks is not None:
            self._ranks.close()
        self._state = self._batch = None
        self._joined = self._workers[: size - 1]
        folder = Path(tempfile.mkdtemp(prefix="t1-ranks-"))
        try:
            for worker in self._joined:
                if worker.pid is None:
                    ready = self._hear(worker, STUCK_S)
                    assert isinstance(ready, Ready)
                    worker.pid = ready.pid
            for worker in self._joined:
                worker.channel.send(encode(Join(str(folder / "meeting"), worker.rank, size, timeout_s)))
            self._ranks = GlooRanks(folder / "meeting", 0, size, timeout_s=timeout_s)
            for worker in self._joined:
                assert isinstance(self._hear(worker, STUCK_S), Joined)
        except (RanksError, ChannelClosed, ChannelTimeout) as error:
            raise self._failed(error) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def pids(self) -> dict[int, int]:
        """Rank to process of the workers that are known to be ready."""
        return {worker.rank: worker.pid for worker in self._workers if worker.pid is not None}

    def close(self) -> None:
        """End the workers and wait for it. Idempotent."""
        command, self._command = self._command, None
        if command is not None:
            assert command.stdin is not None
            command.stdin.close()
            try:
                command.wait(END_S if self.pids else 0)  # it may be loading still, and hears nothing meanwhile
            except subprocess.TimeoutExpired:
                command.kill()
                command.wait()
        for worker in self._workers:
            worker.channel.close()
        if self._ranks is not None:
            self._ranks.close()
        self._workers, self._joined, self._ranks, self._state, self._batch = [], [], None, None, None

    def __enter__(self) -> Crew:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- one step ---------------------------------------------------------------------------------------------------------

    def _together(self, job: Job[N, R], network: N, state: TrainerState, batch: Batch) -> R:
        if self.size == 1:
            return job.run(network, state, batch, ALONE)
        if self._ranks is None:
            self.join(self.size)
        assert self._ranks is not None
        # By identity: states and batches are values, and nobody changes one.
        known_state, known_batch = self._state is state, self._batch is batch
        task = Task(job, NetworkKind.of(network), None if known_state else state, None if known_batch else batch)
        try:
            message = encode(task)
            for worker in self._joined:
                worker.channel.send(message)
            result = job.run(network, state, batch, self._ranks)
            proofs = {worker.rank: self._hear(worker, STUCK_S) for worker in self._joined}
        except (RanksError, ChannelClosed, ChannelTimeout) as error:
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise
        if odd := [rank for rank, done in proofs.items() if done != Done(job.proof(result))]:
            self.close()
            raise RanksError(
                f"rank {odd[0]} of {self._what} came to other bytes than rank 0; nothing was kept of the step. This is a "
                "fault of the program or of the machine's memory"
            )
        self._state, self._batch = job.after(result, state), batch
        return result

    def _hear(self, worker: _Worker, timeout_s: float) -> object:
        answer = worker.channel.receive(timeout_s)
        if isinstance(answer, Failed):
            raise _Told(worker, answer)
        return answer

    def _failed(self, error: Exception) -> RanksError:
        """Ends the crew, and says whose fault ``error`` is."""
        dead: list[str] = []
        told: list[str] = []
        stuck: list[str] = []
        traces: list[str] = []
        until_s = time.monotonic() + VERDICT_S
        for worker in self._joined:
            name = f"rank {worker.rank} of {self._what} (process {worker.pid or 'unknown'})"
            try:
                answer = error.answer if isinstance(error, _Told) and error.worker is worker else None
                while not isinstance(answer, Failed):
                    answer = worker.channel.receive(max(0.01, until_s - time.monotonic()))
                if not answer.lost:
                    told.append(f"{name} failed: {answer.error}")
                    traces.append(answer.trace)
            except ChannelClosed:
                dead.append(f"{name} died without a word: killed by hand, or for want of memory")
            except ChannelTimeout:
                stuck.append(f"{name} is stuck: it neither answers nor ends")
        self.close()
        found = "; ".join([*dead, *told, *stuck]) or str(error)
        failure = RanksError(f"{found}. Nothing was updated; the step can be taken again")
        for trace in traces:
            failure.add_note(trace)
        return failure


class _Told(RanksError):
    """What a worker said last."""

    def __init__(self, worker: _Worker, answer: Failed) -> None:
        super().__init__(answer.error)
        self.worker = worker
        self.answer = answer
