"""Which kernels a run uses and what decides its bits here, without torch in this process.

A process of its own looks (``python -m t1actors.train.environment``): it loads torch, tries the kernels, hashes what each
operation gives, and ends. ``Search`` starts it and goes on, so that what else is to be checked before a run is checked
meanwhile. What it finds is recorded in RunStarted; from there every actor's process has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import cast, get_args

from t1actors.config import Config, KernelsName
from t1actors.events import RunStarted, decode
from t1actors.log.interface import Log
from t1actors.runtime.errors import RunDirectoryError, RuntimeFault
from t1actors.runtime.recovery import SUPERVISOR

DEADLINE_S = 300.0
"""As long as an actor may take until it is ready: loading torch from a cold disk is most of it."""
FIXES = {"native": "install a C compiler (Debian or Ubuntu: apt-get install gcc) and this package again"}
"""By the name of kernels that are lacking, what a person can do."""


class KernelsLacking(RuntimeFault):
    """The kernels that were asked for are not to be had on this machine. ``instead``: those that are; empty: none."""

    def __init__(self, wanted: str, why: str, instead: str) -> None:
        super().__init__(
            f"model.kernels = {wanted!r} cannot be used here: {why}"
            + (f"; with 'auto' it would be {instead!r}" if instead else "")
        )
        self.wanted = wanted
        self.why = why
        self.instead = instead


class NumericsUnknown(RuntimeFault):
    """The process that was to look failed: says how."""


@dataclass(frozen=True)
class Numerics:
    """``kernels`` by name; ``facts``: a hash for each operation, and what may explain another one; ``passed_over``: why not
    those kernels that are faster. Without arguments: nobody looked."""

    kernels: str = ""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    passed_over: Mapping[str, str] = field(default_factory=dict[str, str])


class Search:
    """Looks for the kernels called ``wanted`` (or ``auto``) from now on, with ``env`` as an actor's process has it. Use it
    with ``with``: what still looks at the end of the block is killed."""

    def __init__(self, wanted: str, *, env: Mapping[str, str]) -> None:
        self._wanted = wanted
        self._process = subprocess.Popen(
            # -P: what lies in the user's working directory must not stand in for a library.
            [sys.executable, "-P", "-m", "t1actors.train.environment", wanted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def found(self) -> Numerics:
        """Waits for the answer. Raises ``KernelsLacking``, ``NumericsUnknown``."""
        try:
            said, complaint = self._process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            raise NumericsUnknown(f"looking for kernels took more than {DEADLINE_S:.0f} s") from error
        try:
            answer = json.loads(said)
        except ValueError as error:
            last = (complaint.strip().splitlines() or ["it said nothing"])[-1]
            raise NumericsUnknown(
                f"looking for kernels failed with exit status {self._process.returncode}: {last}; "
                f"`{sys.executable} -m t1actors.train.environment {self._wanted}` shows all of it"
            ) from error
        if "lacking" in answer:
            raise KernelsLacking(self._wanted, answer["lacking"], answer["instead"])
        return Numerics(answer["kernels"], answer["numerics"], answer["passed_over"])

    def __enter__(self) -> Search:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


def first_start(log: Log) -> RunStarted | None:
    """The event that ``log`` was begun with."""
    with closing(log.open_reader(SUPERVISOR)) as reader:
        begun = [decode(raw) for frame in reader.read(max_frames=1) for raw in frame.events]
    return next((event for event in begun if isinstance(event, RunStarted)), None)


def of_the_run(config: Config, started: RunStarted | None) -> Config:
    """``config`` with the kernels that ``started`` says the run uses, where it says so. Raises ``RunDirectoryError``."""
    if started is None or not started.kernels:
        return config
    if started.kernels not in get_args(KernelsName):
        raise RunDirectoryError(
            f"run {started.run} was begun with the {started.kernels} kernels, which this version does not have; go on with "
            f"the version that it was begun with, {started.code_version}"
        )
    return replace(config, model=replace(config.model, kernels=cast(KernelsName, started.kernels)))
