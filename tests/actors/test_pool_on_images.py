"""From a task's Dockerfile to its verdict: the pool builds the image, trials work on it, grading stands on the same one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from t1actors import config as cfg
from t1actors.actors.environments import image_store
from t1actors.actors.pool import Create, Pool, Reclaim, Run, Seal
from t1actors.events import SandboxReady, SandboxSealed, StepOpened, TrialFailed, TrialSpec, TurnExecuted
from t1actors.images.sources import import_source
from t1actors.log.blobs import MemoryBlobs
from t1actors.payloads import unpack
from t1actors.runtime.actor import ActorContext
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import Limits
from t1actors.tasks.reader import read_task
from t1actors.verify.grade import grade
from tests.actors.test_pool import turn
from tests.actors.test_pool_in_sandboxes import perform
from tests.images.roots import make_root
from tests.sandbox.remote import why_no_network

DOCKERFILE = """FROM little:1
ENV GREETING=hello
WORKDIR /app
COPY data.txt .
RUN echo "$GREETING from the build" > built.txt; rm /usr/bin/sed
"""
TEST_SH = r"""
passed=0; failed=0; list=
check() {
    if eval "$2"; then s=passed; passed=$((passed + 1)); else s=failed; failed=$((failed + 1)); fi
    list="$list${list:+, }{\"name\": \"$1\", \"status\": \"$s\", \"duration\": 0}"
}
check data '[ "$(cat /app/data.txt)" = changed ]'; check built '[ -e /app/built.txt ]'; check gone '[ ! -e /app/sub ]'
echo "{\"results\": {\"tool\": {\"name\": \"sh\"}, \"summary\": {\"tests\": 3, \"passed\": $passed, \"failed\": $failed,
\"pending\": 0, \"skipped\": 0, \"other\": 0, \"start\": 0, \"stop\": 0}, \"tests\": [$list]}}" > /logs/verifier/ctrf.json
"""


class Played:
    """A pool with the one task ``mine`` and its trials."""

    def __init__(self, tmp_path: Path, *sets: str) -> None:
        self.tasks = tmp_path / "tasks"
        found = cfg.resolve(preset="smoke", sets=["sandbox.host_base=false", *sets]).config
        self.config = replace(
            found,
            tasks=replace(found.tasks, source=str(self.tasks)),
            sandbox=replace(found.sandbox, images=str(tmp_path / "images")),
        )
        self.store = image_store(self.config.sandbox)
        self.blobs = MemoryBlobs()
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        self.pool = Pool(ActorContext("pool", self.run_dir, self.config, self.blobs, 1, trio.current_time))

    def write_task(self, dockerfile: str) -> None:
        mine = self.tasks / "mine"
        files = {
            "task.toml": 'version = "1.0"\n[metadata.t1]\nexpected = ["data", "built", "gone"]\n',
            "instruction.md": "Change it.\n",
            "environment/Dockerfile": dockerfile,
            "environment/data.txt": "original\n",
            "tests/test.sh": TEST_SH,
        }
        for name, text in files.items():
            (mine / name).parent.mkdir(parents=True, exist_ok=True)
            (mine / name).write_text(text)

    def opened(self, *trials: str) -> None:
        specs = tuple(TrialSpec(trial=t, index=n, task="mine", seed=0, turn_limit=9) for n, t in enumerate(trials))
        self.pool.fold(
            self.pool.initial(),
            StepOpened(
                step=0, purpose="train", version="v", version_index=0, batch_size=1, temperature=1.0, trials=specs
            ),
        )

    async def create(self, trial: str) -> SandboxReady | TrialFailed:
        [event] = await perform(self.pool, Create(key=f"{trial}/create", trial=trial, task="mine"))
        assert isinstance(event, SandboxReady | TrialFailed)
        self.pool.fold(self.pool.initial(), event)
        return event

    async def run(self, trial: str, number: int, command: str) -> str:
        self.pool.fold(self.pool.initial(), msgspec.structs.replace(turn(trial, number), command=command))
        events = await perform(self.pool, Run(key=f"{trial}/{number}/run", trial=trial, turn=number, command=command))
        for event in events:
            self.pool.fold(self.pool.initial(), event)
        assert isinstance(events[-1], TurnExecuted), events
        return events[-1].observation

    async def seal(self, trial: str) -> SandboxSealed:
        *_, sealed = await perform(self.pool, Seal(key=f"{trial}/seal", trial=trial, task="mine"))
        assert isinstance(sealed, SandboxSealed)
        await perform(self.pool, Reclaim(key=f"{trial}/kill", trial=trial))
        return sealed


def play(played: Played, main: Callable[[Played], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with played.pool.running():
            await main(played)

    trio.run(inside)


@pytest.fixture
def played(host_makes_sandboxes: None, tmp_path: Path) -> Played:
    found = Played(tmp_path)
    found.store.set_name("little:1", import_source(found.store, make_root(tmp_path / "root")), source="test")
    return found


def test_a_tasks_dockerfile_is_what_its_trials_find_and_what_they_are_graded_on(played: Played) -> None:
    async def main(played: Played) -> None:
        ready = await played.create("s0.t0")
        assert isinstance(ready, SandboxReady)
        assert ready.image.startswith("sha256:")
        assert (ready.isolation.base, ready.isolation.warnings) == (ready.image, ())
        again = await played.create("s0.t1")
        assert isinstance(again, SandboxReady)
        assert again.image == ready.image
        look = "cat built.txt data.txt /etc/os-release; echo $GREETING; sed 2>&1"
        seen = await played.run("s0.t0", 0, look)
        assert "hello from the build\noriginal\nID=little\nhello\n" in seen
        assert "sed: command n" in seen
        await played.run("s0.t0", 1, "echo changed > data.txt; mkdir sub; rm -r sub")
        verdicts = []
        graders = NamespaceBackend(played.run_dir / "graders", name="graders", images=played.store)
        async with graders.running():
            for trial in ("s0.t0", "s0.t1"):
                sealed = await played.seal(trial)
                assert sealed.image == ready.image
                layer = bytes(unpack(played.blobs, sealed.layer))
                task = read_task(played.tasks / "mine")
                verdicts.append(
                    await grade(
                        task,
                        layer,
                        graders,
                        key=trial,
                        deadline_s=60.0,
                        lease_s=60.0,
                        limits=Limits(),
                        base=sealed.image,
                    )
                )
        assert [verdict.outcome for verdict in verdicts] == ["graded", "graded"], verdicts
        assert [[a.passed for a in verdict.assertions] for verdict in verdicts] == [
            [True, True, True],
            [False, True, True],
        ]
        assert verdicts[0].tools_digest == ready.image.removeprefix("sha256:")

    played.write_task(DOCKERFILE)
    played.opened("s0.t0", "s0.t1")
    play(played, main)


def test_a_lost_sandbox_is_made_again_on_the_image_it_had(played: Played) -> None:
    async def main(played: Played) -> None:
        ready = await played.create("s0.t0")
        assert isinstance(ready, SandboxReady)
        await played.run("s0.t0", 0, "echo one > file; cat built.txt")
        await played.pool._pool.kill("s0.t0")
        played.write_task(DOCKERFILE.replace("hello", "goodbye"))  # another image: not this trial's
        assert "one\nhello from the build" in await played.run("s0.t0", 1, "cat file built.txt")
        assert (await played.seal("s0.t0")).image == ready.image

    played.write_task(DOCKERFILE)
    played.opened("s0.t0")
    play(played, main)


@pytest.mark.parametrize(
    ("dockerfile", "cause", "says"),
    [
        (
            "FROM little:1\nWORKDIR /app\nRUN echo broken; exit 4\n",
            "BuildFailed",
            "RUN echo broken; exit 4: exit status 4\nbroken",
        ),
        ("FROM none:1\nWORKDIR /app\n", "ImageMissing", "`t1 image import none:1 SOURCE`"),
        ("FROM little:1\nWORKDIR /app\nCOPY gone* /x/\n", "BuildFailed", "gone*: nothing of that name"),
    ],
)
def test_a_task_that_does_not_build_fails_its_trial_by_name(
    played: Played, dockerfile: str, cause: str, says: str
) -> None:
    async def main(played: Played) -> None:
        failed = await played.create("s0.t0")
        assert isinstance(failed, TrialFailed)
        assert (failed.creating, failed.own_fault) == (True, True)
        assert failed.cause == cause
        assert says in failed.detail

    played.write_task(dockerfile)
    played.opened("s0.t0")
    play(played, main)


def test_trials_of_one_task_wait_for_one_build(played: Played) -> None:
    async def main(played: Played) -> None:
        images: list[str] = []

        async def create(trial: str) -> None:
            ready = await played.create(trial)
            assert isinstance(ready, SandboxReady)
            images.append(ready.image)
            await played.seal(trial)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(create, f"s0.t{number}")
        assert len(set(images)) == 1

    # What it writes differs each time it runs: two builds would be two images.
    played.write_task("FROM little:1\nWORKDIR /app\nRUN cat /proc/sys/kernel/random/uuid > unique\n")
    played.opened(*(f"s0.t{number}" for number in range(4)))
    play(played, main)
    assert len(played.store.list()) == 2


def test_the_hosts_usr_stands_in_for_a_dockerfile_with_a_build_and_is_recorded(
    host_makes_sandboxes: None, tmp_path: Path
) -> None:
    async def main(played: Played) -> None:
        ready = await played.create("s0.t0")
        assert isinstance(ready, SandboxReady)
        assert ready.image.startswith("sha256:")
        assert ready.isolation.warnings == ("the host's own /usr stands in for debian:99",)
        assert "made" in await played.run("s0.t0", 0, "cat made; python3 -c 'print(1)'")
        await played.seal("s0.t0")

    played = Played(tmp_path, "sandbox.host_base=true")
    played.write_task("FROM debian:99\nWORKDIR /app\nRUN echo made > made\n")
    played.opened("s0.t0")
    play(played, main)


def test_a_task_that_asks_for_a_network_has_one_in_a_run_that_allows_it_and_it_is_recorded(
    host_makes_sandboxes: None, tmp_path: Path
) -> None:
    if reason := why_no_network():
        pytest.skip(f"network: {reason}")

    async def main(played: Played) -> None:
        ready = await played.create("s0.t0")
        assert isinstance(ready, SandboxReady)
        assert ready.isolation.network == "internet by slirp4netns; refused: host, 10.0.0.0/8"
        assert "nameserver 10.0.2.3" in await played.run("s0.t0", 0, "cat /etc/resolv.conf")
        await played.seal("s0.t0")

    sets = ["sandbox.network=tasks", 'sandbox.refused_addresses=["host", "10.0.0.0/8"]', "sandbox.host_base=true"]
    played = Played(tmp_path, *sets)
    played.write_task("FROM debian:99\nWORKDIR /app\n")
    with (played.tasks / "mine/task.toml").open("a") as file:
        file.write("[environment]\nallow_internet = true\n")
    played.opened("s0.t0")
    play(played, main)
