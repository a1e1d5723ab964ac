"""The life of sandboxes: idempotent calls, what survives whom, and that nothing is ever left."""

import os
import shutil
import signal
import time

import anyio
import pytest

from t1actors.sandbox.archive import EMPTY, archive_of_files, find_file, subtree, walk
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import ArchiveError, SandboxDied, SandboxGone, SandboxRefused, SandboxSealed
from t1actors.sandbox.interface import Layer, Limits, RunRequest, SandboxSpec
from t1actors.sandbox.wire import key_of, name_of
from tests.sandbox.pools import start_and_kill_a_pool


def request(key, command, limit_s=20.0):
    return RunRequest(key=key, command=command, limit_s=limit_s)


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_sandbox_lives_its_whole_life_and_leaves_nothing(live, loop):
    async def body(backend):
        created = await backend.create(SandboxSpec(key="s0.t3"))
        assert not created.existed
        assert created.isolation.backend == live.kind
        assert {"fork_s", "root_s", "isolate_s", "create_s"} <= created.phases.keys()
        assert (await backend.run("s0.t3", request("1", "echo hi >f; cat f"))).text == "hi\n"
        assert await backend.read_file("s0.t3", "/app/f", max_bytes=10) == b"hi\n"
        assert await backend.list() == ["s0.t3"]
        await backend.renew("s0.t3")
        assert find_file(await backend.seal("s0.t3"), "app/f") == b"hi\n"
        await backend.kill("s0.t3")
        await backend.kill("s0.t3")
        assert await backend.list() == []

    live(body, loop=loop)


def test_create_is_idempotent_by_key_also_when_two_ask_at_once(live):
    async def body(backend):
        existed = []

        async def create():
            existed.append((await backend.create(SandboxSpec(key="one"))).existed)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(create)
        assert sorted(existed) == [False, True, True, True]
        await backend.run("one", request("1", "echo kept >f"))
        assert (await backend.create(SandboxSpec(key="one"))).existed
        assert await backend.read_file("one", "app/f", max_bytes=10) == b"kept\n"

    live(body)


def test_a_command_runs_once_per_key_whoever_asks_how_often(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        results = []

        async def run():
            results.append(await backend.run("one", request("k", "echo x >>log; sleep 0.3; cat log")))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(run)
        await run()
        assert {result.text for result in results} == {"x\n"}
        assert len({result.seconds for result in results}) == 1

    live(body)


def test_commands_of_one_sandbox_run_one_after_the_other(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))

        async def run(number):
            await backend.run("one", request(str(number), "echo in >>log; sleep 0.05; echo out >>log"))

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(run, number)
        assert await backend.read_file("one", "/app/log", max_bytes=1000) == b"in\nout\n" * 5

    live(body)


def test_a_command_whose_caller_was_cancelled_goes_on_and_its_result_is_kept(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        with anyio.move_on_after(0.2):
            await backend.run("one", request("k", "sleep 0.6; echo done >>log; cat log"))
        assert (await backend.run("one", request("k", "never run"))).text == "done\n"

    live(body)


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.04, 0.1, 0.2, 0.3])
def test_a_creation_cancelled_at_any_moment_leaves_nothing(live, after_s):
    # S2, the second half.
    async def body(backend):
        await backend.list()  # the fork server is up, so the cut falls into the creation itself
        with anyio.move_on_after(after_s) as scope:
            await backend.create(SandboxSpec(key="one"))
        if scope.cancelled_caught:
            assert await backend.list() == []
        else:
            await backend.kill("one")

    live(body, expect_left=True)
    live.assert_nothing_left()


def test_a_command_beyond_its_limit_leaves_no_process_and_no_mount(live):
    # S2, the first half.
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        result = await backend.run("one", request("k", "sleep 1000 & exec sleep 1000", limit_s=0.5))
        assert result.timed_out
        assert [name for _, name in live.processes() if name == "sleep"] == []
        await backend.kill("one")

    live(body, expect_left=True)
    live.assert_nothing_left()


def test_five_sandboxes_survive_the_kill_of_their_pool_and_are_found_by_their_keys(live):
    # S3, the first way out.
    start_and_kill_a_pool(live, 60.0)

    async def body(backend):
        assert await backend.list() == [f"s0.t{number}" for number in range(5)]
        assert (await backend.run("s0.t0", request("running", "never run"))).text == "finished\n"
        for number in range(5):
            assert (await backend.run(f"s0.t{number}", request("first", "never run"))).exit_code == 0
            assert (
                await backend.run(f"s0.t{number}", request("next", "echo $x; cat f"))
            ).text == f"{number}\n{number}\n"
            assert (await backend.create(SandboxSpec(key=f"s0.t{number}"))).existed

    live(body)


def test_sandboxes_of_a_killed_pool_are_gone_when_their_leases_end(live):
    # S3, the second way out.
    start_and_kill_a_pool(live, 1.0 if live.kind == "namespaces" else 6.0)  # five containers take longer to make
    live.assert_nothing_left()


def test_a_lease_runs_out_unless_it_is_renewed_or_a_call_is_open(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="left alone", lease_s=0.5))
        await backend.create(SandboxSpec(key="renewed", lease_s=3.0))
        await backend.create(SandboxSpec(key="called", lease_s=0.5))

        async def renew():
            for _ in range(7):
                await anyio.sleep(0.2)
                await backend.renew("renewed")

        async with anyio.create_task_group() as group:
            group.start_soon(renew)
            assert (await backend.run("called", request("k", "sleep 1.5; echo done"))).text == "done\n"
        with anyio.fail_after(20):
            while name_of("left alone") in os.listdir(live.root):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert "renewed" in await backend.list()
        with pytest.raises(SandboxGone):
            await backend.run("left alone", request("k", "echo"))

    live(body)


def test_a_lease_can_be_renewed_before_the_sandbox_is_there(live):
    """On a busy machine whoever keeps leases may come between the start of a shim and the order to create."""

    async def main(backend):
        await backend._server().fork("early")
        await backend.renew("early")
        assert not (await backend.create(SandboxSpec(key="early"))).existed
        await backend.kill("early")

    live(main)


def test_everything_inside_dies_with_a_shim_that_is_killed_and_its_place_is_cleared(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        await backend.create(SandboxSpec(key="two"))
        for key in ("one", "two"):
            await backend.run(key, request("1", "setsid sleep 1000 &"))
        live.signal("t1-shim", signal.SIGKILL)
        with anyio.fail_after(10):
            while {name for _, name in live.processes()} - {"t1-forkserver"}:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        with pytest.raises(SandboxGone):
            await backend.run("one", request("2", "echo"))
        assert not (await backend.create(SandboxSpec(key="one"))).existed
        assert await backend.list() == ["one"]

    live(body)


def test_a_shim_that_is_asked_to_terminate_leaves_nothing(live):
    start_and_kill_a_pool(live, 60.0)
    live.signal("t1-shim", signal.SIGTERM)
    live.assert_nothing_left()


def test_the_reaper_clears_away_what_dead_shims_left(live):
    start_and_kill_a_pool(live, 60.0)
    live.signal("t1-shim", signal.SIGKILL)
    for _ in range(500):
        if not live.processes():
            break
        time.sleep(0.02)
    assert len(os.listdir(live.root)) == 5

    async def body(backend):
        left = {"directory", *live.leaves_outside}
        assert {leftover.kind for leftover in await backend.reap(dry_run=True)} == left
        assert {leftover.kind for leftover in await backend.reap()} == left
        assert await backend.reap() == []
        assert await backend.list() == []

    live(body, expect_left=True)
    live.assert_nothing_left()


def test_a_sandbox_that_dies_under_its_caller_says_so_and_can_still_be_sealed(live):
    # S4: bounded, and the cause decides.
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        await backend.run("one", request("1", "echo work >f"))
        results = []

        async def run():
            results.append(await backend.run("one", request("2", "sleep 1000")))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(0.3)
            live.kill_from_outside()
        assert (results[0].exit_code, results[0].shell_restarted) == (137, True)
        with pytest.raises(SandboxDied) as caught:
            await backend.run("one", request("3", "echo"))
        assert caught.value.cause == "killed"
        assert (await backend.run("one", request("1", ""))).exit_code == 0
        assert find_file(await backend.seal("one"), "/app/f") == b"work\n"

    live(body)


# --- layers, files, seal ---


def test_a_writable_layer_belongs_to_the_trial_and_a_read_only_one_does_not(live):
    archive = archive_of_files({"data/x": b"given\n", "run": b"#!/bin/sh\necho ran\n"})

    async def body(backend):
        layers = (Layer(archive=archive, at="/app"), Layer(archive=archive, at="/tests", read_only=True))
        await backend.create(SandboxSpec(key="one", layers=layers))
        run = await backend.run(
            "one", request("1", "stat -c %u:%g /app/data/x /tests/data/x; echo more >>data/x; rm run; ls")
        )
        assert run.text == "0:0\n0:0\ndata\n"
        for number, command in enumerate(
            ["touch /tests/y", "rm /tests/run", "echo z >/tests/data/x", "mv /tests /t", "rmdir /tests"]
        ):
            assert (await backend.run("one", request(f"w{number}", command))).exit_code != 0
        sealed = await backend.seal("one")
        assert subtree(sealed, "/app") == archive_of_files({"data/x": b"given\nmore\n"})
        assert subtree(sealed, "/tests") == EMPTY

    live(body)


def test_an_agents_sealed_tree_is_laid_read_only_into_a_grader(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="agent"))
        await backend.run("agent", request("1", "echo answer >answer.txt; ln -s /etc/shadow link; mkfifo pipe"))
        sealed = await backend.seal("agent", paths=("/app",))
        tree = subtree(sealed, "/app")
        tests = archive_of_files({"test.sh": b"cat /app/answer.txt >/logs/verifier/report\n"})
        layers = (Layer(archive=tree, at="/app", read_only=True), Layer(archive=tests, at="/tests", read_only=True))
        await backend.create(SandboxSpec(key="grader", layers=layers, workdir="/app"))
        run = await backend.run("grader", request("1", "bash /tests/test.sh; touch /app/x; ls -A /app"))
        assert run.text == "touch: cannot touch '/app/x': Read-only file system\nanswer.txt\nlink\n"
        assert await backend.read_file("grader", "/logs/verifier/report", max_bytes=100) == b"answer\n"

    live(body)


def test_files_are_read_without_following_links_and_only_when_regular_and_small(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        await backend.run(
            "one",
            request(
                "1",
                "echo 12345 >f; ln -s f l; ln -s /app d; mkfifo p; mkdir sub; ln -s /etc/passwd abs; truncate -s 8T huge",
            ),
        )
        read = backend.read_file
        assert await read("one", "/app/f", max_bytes=6) == b"12345\n"
        assert await read("one", "app/f", max_bytes=6) == b"12345\n"
        for path in ("l", "p", "sub", "nothing", "abs", "huge", "f/x", "../../etc/passwd"):
            assert await read("one", f"/app/{path}", max_bytes=1000) is None, path
        assert await read("one", "/app/d/f", max_bytes=1000) is None
        assert await read("one", "/app/f", max_bytes=5) is None
        if live.kind == "namespaces":  # the host's own files are not there at all
            assert await read("one", "/usr/bin/bash", max_bytes=1 << 30) is None
        assert await read("one", "/proc/self/status", max_bytes=1 << 20) is None

    live(body)


def test_seal_kills_everything_freezes_the_tree_and_is_idempotent(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        await backend.run(
            "one",
            request(
                "1",
                "(while :; do date >>busy; done) & echo x >a; rm /etc/hosts; rm -r /srv; mkdir /srv; chmod 500 a",
            ),
        )
        first = await backend.seal("one")
        assert {name for _, name in live.processes()} <= {"t1-shim", "t1-forkserver"}
        assert await backend.seal("one") == first
        with pytest.raises(SandboxSealed):
            await backend.run("one", request("2", "echo"))
        assert (await backend.run("one", request("1", "never run"))).exit_code == 0
        kinds = {(member.kind, member.name) for member in walk(first)}
        assert {("W", b"hosts"), ("O", b"srv"), ("F", b"a")} <= kinds
        only = await backend.seal("one", paths=("/app",))
        assert [member.name for member in walk(only) if member.depth == 1 and member.kind != "E"] == [b"app"]
        assert subtree(only, "/app") == subtree(first, "/app")

    live(body)


def test_a_command_in_flight_when_the_sandbox_is_sealed_ends(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        results = []

        async def run():
            results.append(await backend.run("one", request("1", "sleep 1000")))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(0.3)
            await backend.seal("one")
        assert results[0].exit_code == 137

    live(body)


def test_equal_work_seals_to_equal_bytes_and_restores_to_the_same_tree(live):
    work = "mkdir -p d/e; echo 1 >d/b; echo 2 >d/a; ln -s a d/l; rm -r /opt; echo x >>/etc/hosts; chmod 700 d"

    async def body(backend):
        sealed = []
        for key in ("one", "two"):
            await backend.create(SandboxSpec(key=key))
            await backend.run(key, request("1", work))
            sealed.append(await backend.seal(key))
        assert sealed[0] == sealed[1]
        await backend.create(SandboxSpec(key="three", layers=(Layer(archive=sealed[0], at="/"),)))
        run = await backend.run("three", request("1", "ls d; ls -d /opt; tail -1 /etc/hosts; stat -c %a d"))
        assert run.text == "a\nb\ne\nl\nls: cannot access '/opt': No such file or directory\nx\n700\n"
        assert await backend.seal("three") == sealed[0]

    live(body)


def test_a_tree_3000_deep_and_terabytes_of_holes_are_sealed_and_gone_at_once(live):
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nopen('leaf', 'w').truncate(1 << 43)"

    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        assert (await backend.run("one", request("1", f'python3 -I -S -c "{deep}"'))).exit_code == 0
        sealed = await backend.seal("one")
        assert max(member.depth for member in walk(sealed)) == 3002
        assert len(sealed) < 100_000

    live(body)


def test_names_that_are_no_text_are_kept(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        await backend.run("one", request("1", "touch $'a\\xff b' $'new\\nline'"))
        names = {member.name for member in walk(await backend.seal("one"))}
        assert {b"a\xff b", b"new\nline"} <= names

    live(body)


# --- refusals ---


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"base": "ubuntu:24.04"}, "base 'ubuntu:24.04' is not known"),
        ({"workdir": "app"}, "must be absolute"),
        ({"workdir": "/app/../.."}, "must be absolute"),
        ({"layers": (Layer(archive=EMPTY, at="/app/../etc"),)}, "must be absolute"),
        ({"layers": (Layer(archive=EMPTY, at="/", read_only=True),)}, "read-only layer can't be laid at /"),
        ({"limits": Limits(memory_mb=1)}, "memory_mb = 1"),
        ({"lease_s": 0.0}, "lease_s = 0.0"),
        ({"env": (("A=B", "x"),)}, "'A=B' can't be set"),
        ({"key": "x" * 200}, "200 bytes as a directory name"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_by_name(live, spec, message):
    async def body(backend):
        with pytest.raises(SandboxRefused, match=message):
            await backend.create(SandboxSpec(**{"key": "one", **spec}))

    live(body)


def test_a_damaged_layer_is_refused_and_leaves_nothing(live):
    async def body(backend):
        with pytest.raises(ArchiveError):
            await backend.create(SandboxSpec(key="one", layers=(Layer(archive=EMPTY[:-3], at="/app"),)))
        assert await backend.list() == []

    live(body)


def test_a_layer_larger_than_the_disk_is_refused_and_leaves_nothing(live):
    archive = archive_of_files({"big": b"x" * (3 << 20)})

    async def body(backend):
        with pytest.raises(SandboxRefused, match="do not fit the disk of 2 MB"):
            await backend.create(
                SandboxSpec(key="one", limits=Limits(disk_mb=2), layers=(Layer(archive=archive, at="/app"),))
            )
        assert await backend.list() == []

    live(body)


def test_calls_on_a_sandbox_that_is_not_there_say_so_and_kill_is_silent(live):
    async def body(backend):
        with pytest.raises(SandboxGone, match="nothing lives under"):
            await backend.run("nothing", request("1", "echo"))
        with pytest.raises(SandboxGone):
            await backend.seal("nothing")
        await backend.kill("nothing")

    live(body)


def test_a_backend_that_is_not_running_says_so(tmp_path):
    async def main():
        backend = NamespaceBackend(tmp_path, name="idle")
        with pytest.raises(Exception, match="idle: not running"):
            await backend.create(SandboxSpec(key="one"))

    anyio.run(main)


@pytest.mark.parametrize("key", ["s0.t3", "s0.t3/grade", ".hidden", "with space", "ä%", "..", "a%2Fb"])
def test_a_key_survives_being_a_directory_name(key):
    name = name_of(key)
    assert key_of(name) == key
    assert "/" not in name
    assert not name.startswith(".")


def test_odd_keys_and_a_long_root_work_all_the_same(live, tmp_path):
    # The address of a Unix socket holds 107 bytes.
    live.root = tmp_path / ("long" * 30) / ("root" * 30)
    live.prefix = type(live)(live.root).prefix

    async def body(backend):
        for key in ("s0.t3/grade", ".x", "é"):
            await backend.create(SandboxSpec(key=key))
        assert sorted(await backend.list()) == sorted(["s0.t3/grade", ".x", "é"])

    live(body)


def test_a_sandbox_whose_directory_was_deleted_takes_nothing_of_its_successors_along_when_its_lease_ends(live):
    def shims():
        return {pid for pid, name in live.processes() if name == "t1-shim"}

    async def body(backend):
        await backend.create(SandboxSpec(key="one", lease_s=1.0))
        old = shims()
        shutil.rmtree(live.root / "one")
        await backend.create(SandboxSpec(key="one"))
        await backend.run("one", request("1", "echo kept >f"))
        with anyio.fail_after(60):
            while old & shims():  # noqa: ASYNC110 - processes tell nobody
                await anyio.sleep(0.05)
        assert (await backend.run("one", request("2", "cat f"))).text == "kept\n"
        assert await backend.list() == ["one"]
        await backend.kill("one")

    live(body)
