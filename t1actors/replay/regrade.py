"""Grades recorded trials again, from the log and its blobs, and compares with the verdicts that are recorded.

    regrader = Regrader.open(Path("runs/demo"))             # or an exported archive, other tests, another verifier
    async with regrader.running():
        again = await regrader.grade("s3.t7")                # again.same, again.differences, again.text()

Guarantees: the run is only read; what is graded has the digest that the log names; a trial that was graded in its own
sandbox is judged again from what its tests left there, as that sandbox is gone; another verifier is given the sealed tree of
either. What cannot be graded is
``RegradeImpossible`` and says why.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from t1actors.actors.environments import image_store
from t1actors.actors.task_files import TaskFiles
from t1actors.actors.verdicts import TOOLS_FOLDER, verdict_on, verifier_of
from t1actors.actors.verifier import graded
from t1actors.config import Config, ConfigError, from_toml
from t1actors.events import Graded, RunStarted, SandboxSealed, decode
from t1actors.log.blobs import FileBlobs
from t1actors.log.errors import LogError
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from t1actors.payloads import BlobError
from t1actors.runtime.actor import Unrecoverable
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.errors import SandboxError
from t1actors.sandbox.interface import SandboxBackend
from t1actors.tasks.pools import BUILTIN
from t1actors.tasks.reader import read_task
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.verdict import Grader, VerifyError

_READ = frozenset({"RunStarted", "SandboxSealed", "Graded"})
_SAME_BYTES = ("layer_digest", "tests_digest", "tools_digest", "tool_layer_digest")


MakeVerifier = Callable[[SandboxBackend], Grader]


class RegradeImpossible(Exception):
    """The trial, or the run, cannot be graded again from what is there: says what is missing."""


class _Kind(msgspec.Struct):
    kind: str


_kind = msgspec.msgpack.Decoder(_Kind)


@dataclass(frozen=True)
class Difference:
    """Of one assertion, or of the verdict itself; None: it has none."""

    what: str
    recorded: str | None
    now: str | None


@dataclass(frozen=True)
class Regraded:
    """``recorded`` is None for a trial whose verdict the log lacks: then there is nothing to compare with."""

    recorded: Graded | None
    now: Graded
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether verdict and assertions are what was recorded."""
        return self.recorded is not None and not self.differences


@dataclass
class _Trials:
    config: Config
    sealed: dict[str, SandboxSealed] = field(default_factory=dict[str, SandboxSealed])
    graded: dict[str, Graded] = field(default_factory=dict[str, Graded])


class Regrader:
    """Grades trials of one run again. Use inside ``async with regrader.running():``."""

    def __init__(self, run_dir: Path, trials: _Trials, tests: Path | None, make_verifier: MakeVerifier | None) -> None:
        self._trials = trials
        self._run_dir = run_dir
        self._blobs = FileBlobs(run_dir / "blobs")
        self._tests = tests
        self._make_verifier = make_verifier
        self._scratch: Path | None = None
        self._verifier: Grader | None = None

    @classmethod
    def open(
        cls,
        run: Path,
        *,
        tests: Path | None = None,
        make_verifier: MakeVerifier | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Regrader:
        """The run in a directory.

        Args:
            tests: a directory with a test.sh, or a whole task, that grades instead of the recorded task's own.
            make_verifier: gives the verifier that grades instead of the run's, which may make sandboxes with the backend.
            progress: hears of events: read, total.

        Raises:
            RegradeImpossible: it is no run, or its log cannot be read.
        """
        if not (run / "log").is_dir():
            raise RegradeImpossible(f"{run} has no folder log/: it is not the directory of a run")
        log = FileLog(run / "log")
        found: _Trials | None = None
        try:
            total = log.events() if progress is not None else 0
            for done, entry in enumerate(merged(log)):
                if progress is not None:
                    progress(done, total)
                if _kind.decode(entry.raw).kind not in _READ:
                    continue
                event = decode(entry.raw)
                if isinstance(event, RunStarted):
                    found = found or _Trials(from_toml(event.config_toml, origin="RunStarted"))
                elif found is not None and isinstance(event, SandboxSealed):
                    found.sealed[event.trial] = event
                elif found is not None and isinstance(event, Graded):
                    found.graded[event.trial] = event
        except (LogError, ConfigError, msgspec.DecodeError) as error:
            raise RegradeImpossible(f"{run}: {error}") from error
        if found is None:
            raise RegradeImpossible(f"{run}: its log has no RunStarted: this is not the log of a run")
        return cls(run, found, tests, make_verifier)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Regrader]:
        """Sandboxes can be made meanwhile. Raises ``SandboxUnavailable``."""
        with tempfile.TemporaryDirectory(prefix="t1-grade-") as scratch:
            self._scratch = Path(scratch)
            tools = self._scratch / TOOLS_FOLDER
            if (self._run_dir / TOOLS_FOLDER).is_dir():  # built in the run already; that is only read
                shutil.copytree(self._run_dir / TOOLS_FOLDER, tools)
            sandbox = self._trials.config.sandbox
            backend = make_backend(sandbox, self._scratch / "s", name="grade", images=image_store(sandbox))
            async with backend.running():
                make = self._make_verifier
                self._verifier = make(backend) if make else verifier_of(self._trials.config, backend, cache=tools)
                yield self
            self._verifier = None

    def trials(self) -> list[str]:
        """Those with a recorded verdict on what they left, in the order of grading."""
        return [trial for trial in self._trials.graded if trial in self._trials.sealed]

    async def grade(self, trial: str) -> Regraded:
        """Grade ``trial`` again. Raises ``RegradeImpossible``."""
        if self._verifier is None:
            raise RuntimeError("use a Regrader inside `async with regrader.running():`")
        recorded, sealed = self._trials.graded.get(trial), self._trials.sealed.get(trial)
        if sealed is None:
            known = f"it has {len(self._trials.sealed)}" if self._trials.sealed else "it has none"
            raise RegradeImpossible(f"{self._run_dir}: no sealed trial {trial!r} in its log ({known}, such as s0.t0)")
        if self._make_verifier is not None:
            sealed = msgspec.structs.replace(sealed, tested=None)
        if sealed.tested is not None and self._tests is not None:
            raise RegradeImpossible(
                f"trial {trial} was graded in its own sandbox, which is gone: other tests cannot run there any more"
            )
        try:
            task, notes = self._task(sealed.task)
            verdict = await verdict_on(sealed, task, self._verifier, self._blobs, key=trial)
        except (BlobError, TaskError, VerifyError, SandboxError, Unrecoverable) as error:
            raise RegradeImpossible(f"trial {trial}: {error}") from error
        now = graded(sealed, verdict, self._trials.config.verify.reward_scale)
        if sealed.tested is not None:
            notes = (*notes, "judged again from what the tests left in the trial's own sandbox, which is gone")
        if recorded is not None:
            changed = [name for name in _SAME_BYTES if getattr(recorded, name) != getattr(now, name)]
            notes = (*notes, *(f"{name.removesuffix('_digest')}: not the recorded bytes" for name in changed))
        return Regraded(recorded, now, _differences(recorded, now), notes)

    def _task(self, name: str) -> tuple[Task, tuple[str, ...]]:
        if self._tests is not None and (self._tests / "task.toml").is_file():
            return read_task(self._tests), (f"graded as the task in {self._tests}",)
        task = self._recorded_task(name)
        if self._tests is None:
            return task, ()
        if not (self._tests / "test.sh").is_file():
            raise TaskError(f"{self._tests}: neither a task (task.toml) nor tests (test.sh)")
        # Other tests have other assertions: what their report lists is what counts.
        return replace(task, tests_dir=self._tests, expected=(), control=""), (
            f"graded with the tests in {self._tests}",
        )

    def _recorded_task(self, name: str) -> Task:
        assert self._scratch is not None
        config = self._trials.config.tasks
        if config.source == BUILTIN:  # they are functions of their names
            return TaskFiles(config, self._scratch).read(name)
        return TaskFiles(config, self._run_dir).read(name)


@contextmanager
def directory_of(run: Path) -> Generator[Path]:
    """The run's directory: ``run`` itself, or what the archive ``run`` of `t1 log export` holds, for as long as the
    block lasts. Raises ``RegradeImpossible``."""
    if not run.is_file():
        yield run
        return
    with tempfile.TemporaryDirectory(prefix="t1-grade-") as scratch:
        place = Path(scratch)
        try:
            with tarfile.open(run) as tar:
                tar.extractall(place, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise RegradeImpossible(f"{run}: neither a run's directory nor an exported archive: {error}") from error
        inside = [path for path in place.iterdir() if path.is_dir()]
        if len(inside) != 1:
            raise RegradeImpossible(f"{run}: not an archive of one run")
        yield inside[0]


def _differences(recorded: Graded | None, now: Graded) -> tuple[Difference, ...]:
    if recorded is None:
        return ()
    found: list[Difference] = []
    if recorded.outcome != now.outcome:
        found.append(Difference("outcome", recorded.outcome, now.outcome))
    then, here = ({result.id: result.passed for result in event.assertions} for event in (recorded, now))
    for name in dict.fromkeys((*then, *here)):
        if then.get(name) != here.get(name):
            found.append(Difference(name, _word(then.get(name)), _word(here.get(name))))
    if recorded.reward != now.reward:
        found.append(Difference("reward", str(recorded.reward), str(now.reward)))
    return tuple(found)


def _word(passed: bool | None) -> str | None:
    return None if passed is None else "passed" if passed else "failed"
