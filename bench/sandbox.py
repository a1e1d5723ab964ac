"""Sandboxes: what one costs to create, to use, to seal, to kill and to grade, in wall and in CPU seconds.

    python -m bench.sandbox [--quick | --write] [--json FILE] [--docker-socket SOCKET --docker-image IMAGE]

Where a Docker daemon answers, a last table sets it against namespaces (``sandbox_docker``). Targets stand beside what they
are for: they are meant for two idle cores.

CPU seconds are complete, which takes some care: the kernel forgets what a process used when nobody waits for it, as happens
to a shim that dies under the fork server and to what still runs in a sandbox when its first process is killed. So here no
sandbox is killed while the fork server lives. When it has ended, the shims are this process's children; every shell is told
to exit, and a second backend kills the sandboxes. A scenario without sandboxes gives what the backends themselves cost.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import trio

from bench.local_run import temporary_directory
from bench.measure import Sample, Spread, cpu_seconds
from bench.sandbox_docker import compare, compare_memory, why_not
from bench.sandbox_memory import MB, live_memory
from bench.tables import Table, conclude, parser
from t1actors.config import DockerConfig
from t1actors.runtime.orphans import Orphans, adopting
from t1actors.sandbox.archive import archive_of_files
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxError
from t1actors.sandbox.interface import (
    Created,
    Layer,
    Leftover,
    Limits,
    RunRequest,
    RunResult,
    SandboxBackend,
    SandboxSpec,
)
from t1actors.tasks.generate import WORKDIR
from t1actors.tasks.pools import builtin_names
from t1actors.tasks.reader import read_task
from t1actors.tasks.task import Task
from t1actors.tasks.write import ensure_tasks
from t1actors.verify.grade import grade

Work = Callable[["KillLater", int], Awaitable[None]]
COMMAND = "ls -l > listing.txt; wc -l listing.txt"
PATIENCE_S = 10.0
CREATE_TARGET_MS, COMMAND_TARGET_MS, RATE_TARGET, MEMORY_TARGET_MB = "20", "5", "40", "1,000 for 94"
MOST_CONTAINERS = 8
"""In a round of the comparison: what is seen in one is seen in eight."""


@dataclass(frozen=True)
class Sizes:
    sandboxes: int = 24
    commands: int = 20
    rounds: int = 5
    live: int = 94


QUICK = Sizes(sandboxes=2, commands=2, rounds=1, live=2)


@dataclass
class KillLater:
    """A backend that kills nothing now, and counts seconds by call."""

    backend: NamespaceBackend
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    async def create(self, spec: SandboxSpec) -> Created:
        return await self._timed("create", self.backend.create(spec))

    async def run(self, sandbox: str, request: RunRequest) -> RunResult:
        return await self._timed("command", self.backend.run(sandbox, request))

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes | None:
        return await self.backend.read_file(sandbox, path, max_bytes=max_bytes)

    async def seal(self, sandbox: str, *, paths: tuple[str, ...] = ("/",)) -> bytes:
        return await self._timed("seal", self.backend.seal(sandbox, paths=paths))

    async def kill(self, sandbox: str) -> None:
        """Later."""

    async def list(self) -> list[str]:
        return await self.backend.list()

    async def reap(self, *, dry_run: bool = False) -> list[Leftover]:
        return await self.backend.reap(dry_run=dry_run)

    async def renew(self, sandbox: str) -> None:
        await self.backend.renew(sandbox)

    async def _timed(self, name: str, call: Awaitable[object]) -> object:
        began_s = time.perf_counter()
        result = await call
        self.seconds.setdefault(name, []).append(time.perf_counter() - began_s)
        return result


@dataclass(frozen=True)
class Measured:
    """One scenario: the whole of it, and wall seconds by call."""

    whole: Sample
    seconds: dict[str, list[float]]


def measure(root: Path, count: int, work: Work) -> Measured:
    """``work`` for sandboxes 0 to ``count``, one after the other, and their end."""
    seconds: dict[str, list[float]] = {}

    async def main() -> None:
        backend = NamespaceBackend(root, name="bench")
        async with backend.running():
            later = KillLater(backend, seconds)
            for number in range(count):
                await work(later, number)
        async with backend.running():
            for key in await backend.list():
                with suppress(SandboxError):  # a sealed one has no shell any more
                    await end_shell(backend, key)
                await backend.kill(key)

    orphans = Orphans()
    with adopting():
        wall_s, cpu_s = time.perf_counter(), cpu_seconds()
        trio.run(main)
        _reap(orphans)
        whole = Sample(time.perf_counter() - wall_s, cpu_seconds() - cpu_s)
    return Measured(whole, seconds)


async def end_shell(backend: SandboxBackend, sandbox: str) -> None:
    """Then the sandbox's first process has waited for the shell, and what it used is accounted for."""
    await backend.run(sandbox, RunRequest(key="end", command="exit", limit_s=20))


def _reap(orphans: Orphans) -> None:
    """Wait for the adopted shims: they have been told to end."""
    until_s = time.monotonic() + PATIENCE_S
    while left := orphans.adopted(set()):
        if time.monotonic() > until_s:
            raise RuntimeError(f"processes {left} outlived their sandboxes by {PATIENCE_S:g} s")
        time.sleep(0.005)


# --- scenarios ----------------------------------------------------------------------------------------------------------


def spec(number: int) -> SandboxSpec:
    archive = archive_of_files({"notes.txt": b"a line\n" * 20})
    return SandboxSpec(key=f"s{number}", workdir=WORKDIR, layers=(Layer(archive=archive, at=WORKDIR),))


async def create(backend: KillLater, number: int) -> None:
    await backend.create(spec(number))


def with_commands(count: int) -> Work:
    async def work(backend: KillLater, number: int) -> None:
        await create(backend, number)
        for turn in range(count):
            await backend.run(f"s{number}", RunRequest(key=str(turn), command=COMMAND, limit_s=20))

    return work


async def with_seal(backend: KillLater, number: int) -> None:
    await create(backend, number)
    await end_shell(backend.backend, f"s{number}")
    await backend.seal(f"s{number}")


def with_grading(tasks: Sequence[Task], seconds: list[float]) -> Work:
    """The grading of work that was left undone: every assertion is decided all the same."""
    layer = archive_of_files({f"{WORKDIR.strip('/')}/notes.txt": b"nothing was done\n"})

    async def work(backend: KillLater, number: int) -> None:
        began_s = time.perf_counter()
        verdict = await grade(
            tasks[number], layer, backend, key=f"g{number}", deadline_s=60, lease_s=60, limits=Limits()
        )
        seconds.append(time.perf_counter() - began_s)
        if verdict.outcome != "graded":
            raise RuntimeError(f"grading {tasks[number].name}: {verdict.outcome}: {verdict.detail}")

    return work


def create_and_kill(root: Path, count: int, parallel: int) -> tuple[float, list[float]]:
    """``count`` sandboxes, ``parallel`` at a time: (seconds in all, seconds of every kill)."""
    kills: list[float] = []

    async def main() -> float:
        backend = NamespaceBackend(root, name="bench")
        waiting = iter(range(count))

        async def one_after_another() -> None:
            for number in waiting:
                await backend.create(spec(number))
                began_s = time.perf_counter()
                await backend.kill(f"s{number}")
                kills.append(time.perf_counter() - began_s)

        async with backend.running():
            began_s = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for _ in range(parallel):
                    tasks.start_soon(one_after_another)
            return time.perf_counter() - began_s

    return trio.run(main), kills


# --- tables -------------------------------------------------------------------------------------------------------------


def run(sizes: Sizes, docker: DockerConfig) -> list[Table]:
    with temporary_directory() as folder:
        names = builtin_names((1, 2, 3), sizes.sandboxes, 1)
        ensure_tasks(folder / "tasks", names)
        tasks = [read_task(folder / "tasks" / name) for name in names]
        grading_seconds: list[float] = []
        scenarios: dict[str, Work] = {
            "create": create,
            "commands": with_commands(sizes.commands),
            "seal": with_seal,
            "grade": with_grading(tasks, grading_seconds),
        }
        found: dict[str, list[Measured]] = {name: [] for name in ("nothing", *scenarios)}
        kills: list[float] = []
        parallel: list[float] = []
        for _ in range(sizes.rounds):
            found["nothing"].append(measure(folder / "s", 0, create))
            for name, work in scenarios.items():
                found[name].append(measure(folder / "s", sizes.sandboxes, work))
            kills += create_and_kill(folder / "s", sizes.sandboxes, 1)[1]
            parallel.append(sizes.sandboxes / create_and_kill(folder / "s", sizes.sandboxes, 8)[0])
        ours = live_memory(NamespaceBackend(folder / "s", name="bench"), sizes.live)
        tables = [_table(sizes, found, kills, grading_seconds), _rate_table(parallel), _memory_table(sizes, ours)]
        if reason := why_not(docker):
            print(f"no comparison with Docker: {reason}", file=sys.stderr)
        else:
            n, rounds = min(sizes.sandboxes, MOST_CONTAINERS), sizes.rounds
            commands = min(sizes.commands, 10)
            compared = compare(folder / "d", docker, sandboxes=n, commands=commands, rounds=rounds, command=COMMAND)
            tables += [compared, compare_memory(folder / "d", docker, live=sizes.live, ours=ours)]
    return tables


def _table(sizes: Sizes, found: dict[str, list[Measured]], kills: list[float], grading_seconds: list[float]) -> Table:
    n = sizes.sandboxes

    def cpu_ms(over: str, under: str, divisor: int) -> Spread:
        pairs = zip(found[over], found[under], strict=True)
        return Spread.of([1000 * (a.whole.cpu_s - b.whole.cpu_s) / divisor for a, b in pairs])

    def wall_ms(scenario: str, call: str) -> Spread:
        return Spread.of([1000 * s for measured in found[scenario] for s in measured.seconds[call]])

    rows = (
        ("create", wall_ms("create", "create"), None, CREATE_TARGET_MS),
        ("kill", Spread.of([1000 * s for s in kills]), None, None),
        ("create and kill", None, cpu_ms("create", "nothing", n), None),
        (
            "a command",
            wall_ms("commands", "command"),
            cpu_ms("commands", "create", n * sizes.commands),
            COMMAND_TARGET_MS,
        ),
        ("seal", wall_ms("seal", "seal"), cpu_ms("seal", "create", n), None),
        (
            "grade, its sandbox included",
            Spread.of([1000 * s for s in grading_seconds]),
            cpu_ms("grade", "nothing", n),
            None,
        ),
    )
    return Table(
        "Sandboxes",
        ("what", "ms wall", "ms CPU", "target, ms wall"),
        rows,
        f"{n} sandboxes a scenario, one after the other, {sizes.rounds} rounds; a command is `{COMMAND}` (two programs "
        "are started). CPU of everything that takes part: this process, the fork server, the shims and all that runs inside. "
        "A shell's exit belongs to *create and kill*.",
    )


def _rate_table(parallel: list[float]) -> Table:
    row = ("create and kill, 8 at a time", Spread.of(parallel), RATE_TARGET)
    return Table("Sandboxes at once", ("what", "a second", "target"), (row,))


def _memory_table(sizes: Sizes, found: Counter[str]) -> Table:
    by_kind = tuple((f"of that, {kind}", size / MB, None) for kind, size in found.most_common())
    total = found.total() / MB
    return Table(
        "Sandboxes: memory of those that live",
        ("what", "MB", "target"),
        ((f"{sizes.live} sandboxes, all their processes", total, MEMORY_TARGET_MB), *by_kind,
         ("one of them", total / sizes.live, None)),
        "Proportional set size (`/proc/PID/smaps_rollup`) of the fork server, the shims and all that runs inside; each "
        "sandbox has its shell. Files that sandboxes wrote are apart.",
    )  # fmt: skip


def main() -> None:
    made = parser(__doc__, writes=True)
    made.add_argument("--docker-socket", default=DockerConfig.socket, metavar="SOCKET", help="the Docker daemon's")
    made.add_argument("--docker-image", default=DockerConfig.image, metavar="IMAGE", help="one with bash and coreutils")
    arguments = made.parse_args()
    docker = DockerConfig(socket=arguments.docker_socket, image=arguments.docker_image)
    conclude("sandbox", arguments, lambda: run(QUICK if arguments.quick else Sizes(), docker))


if __name__ == "__main__":
    main()
