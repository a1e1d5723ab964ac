"""What only Docker has: a daemon that may be away, containers that others may touch, images that may not fit.

The contract of every sandbox is tested in ``test_backend``, ``test_shell`` and ``test_isolation``, for Docker too.
"""

import io
import os
import signal
import tarfile
import threading

import anyio
import pytest

from t1actors.config import DockerConfig, SandboxConfig
from t1actors.sandbox.archive import archive_of_files, find_file, walk
from t1actors.sandbox.choice import make_backend
from t1actors.sandbox.docker.backend import DockerBackend
from t1actors.sandbox.docker.daemon import Daemon, DaemonFailed, container_name
from t1actors.sandbox.errors import SandboxRefused, SandboxUnavailable
from t1actors.sandbox.interface import Layer, RunRequest, SandboxSpec
from t1actors.sandbox.wire import name_of
from tests.docker_daemon import FIRST_REMAPPED_ID, docker_of, own_daemon
from tests.sandbox.conftest import Live
from tests.sandbox.remote import why_no_network


def request(key, command, limit_s=20.0):
    return RunRequest(key=key, command=command, limit_s=limit_s)


def client_of(live):
    return docker_of(f"unix://{live.daemon.socket}")


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_two_backends_in_one_event_loop_each_have_a_thread_for_the_daemon_and_end_it(docker, loop):
    async def body(backend):
        assert [t.name for t in threading.enumerate()].count("docker") == 1
        await backend.create(SandboxSpec(key="one"))
        async with docker.backend("another").running() as other:
            assert [t.name for t in threading.enumerate()].count("docker") == 2
            assert await other.list() == ["one"]
            await other.kill("one")
        assert await backend.list() == []

    docker(body, loop=loop)
    assert "docker" not in [thread.name for thread in threading.enumerate()]


def test_the_container_is_hardened_and_named_by_its_key(docker):
    async def body(backend):
        tests = Layer(archive=archive_of_files({"t": b"t"}), at="/tests", read_only=True)
        created = await backend.create(SandboxSpec(key="s0.t3/grade", layers=(tests,)))
        ask = Daemon(docker.daemon.socket).ask
        name = container_name(backend.prefix, name_of("s0.t3/grade"))
        return created, ask("inspecting", "GET", f"/containers/{name}/json"), ask("info", "GET", "/info")

    created, found, _ = docker(body)
    host = found["HostConfig"]
    assert found["Config"]["Labels"]["t1actors.key"] == "s0.t3/grade"
    assert (host["NetworkMode"], host["CapDrop"], host["Privileged"]) == ("none", ["ALL"], False)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["Memory"], host["PidsLimit"], host["LogConfig"]["Type"]) == (256 << 20, 65, "none")
    mounts = {mount["Destination"]: mount for mount in found["Mounts"]}
    assert set(mounts) == {"/dev/.t1"}
    assert not any(mount["RW"] for mount in mounts.values())
    assert all(mount["Source"].startswith(f"{docker.root}/") for mount in mounts.values())
    # What the sandbox is made of is in the event.
    assert found["Image"] in created.isolation.base
    assert docker.daemon.image in created.isolation.base


def test_the_first_process_of_a_container_cannot_be_read_traced_or_ended_from_inside(docker):
    commands = (
        "head -c 1 /proc/1/mem",
        "cat /proc/1/environ",
        'python3 -c \'open("/proc/1/mem", "r+b")\'',
        "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'",
        "kill -9 1; kill -TERM 1; kill -HUP 1; sleep 0.1; false",
    )

    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        results = [await backend.run("one", request(command, command)) for command in commands]
        await backend.run("one", request("all", "kill -9 -1; sleep 5"))
        return results, await backend.run("one", request("after", "echo still here"))

    results, after = docker(body)
    assert [result.exit_code != 0 for result in results] == [True] * len(commands)
    assert (after.text, after.exit_code) == ("still here\n", 0)


def test_a_container_that_nobody_owns_is_removed_at_the_next_start_and_others_are_left_alone(docker):
    foreign = client_of(docker)("create", "--network=none", docker.daemon.image, "bash").strip()

    async def first(backend):
        await backend.create(SandboxSpec(key="one", lease_s=60.0))
        docker.signal("t1-shim", signal.SIGKILL)
        docker.signal("t1-attendant", signal.SIGKILL)

    async def second(backend):
        assert await backend.list() == []

    docker(first, expect_left=True)
    assert len(docker.containers()) == 1
    docker(second)
    assert client_of(docker)("ps", "-aq", "--no-trunc").split() == [foreign]
    client_of(docker)("rm", "-f", foreign)


def test_a_container_of_the_sandboxs_name_that_a_dead_shim_left_is_replaced(docker):
    async def body(backend):
        name = container_name(backend.prefix, name_of("one"))
        client_of(docker)("create", f"--name={name}", "--network=none", docker.daemon.image, "bash")
        created = await backend.create(SandboxSpec(key="one"))
        assert not created.existed
        assert (await backend.run("one", request("1", "echo works"))).text == "works\n"

    docker(body)


def test_a_container_that_someone_deletes_is_a_sandbox_that_died(docker):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        await backend.run("one", request("1", "echo x"))
        client_of(docker)("rm", "-f", *docker.containers())
        with pytest.raises(Exception, match="killed") as caught:
            await backend.run("one", request("2", "echo x"))
        assert caught.value.cause == "killed"
        await backend.kill("one")

    docker(body)


def test_an_image_whose_volumes_would_not_be_sealed_is_refused_by_name(docker):
    image = with_config(docker, "VOLUME /data")

    async def body(backend):
        with pytest.raises(SandboxRefused, match=r"volumes \(/data\)"):
            await backend.create(SandboxSpec(key="one", base=image))
        assert await backend.list() == []

    docker(body)


def test_an_image_of_the_daemon_is_a_base_with_its_environment_and_directories_as_they_are(docker):
    image = with_config(docker, "ENV LEVEL=image", files={"ground/given": b"from the image\n"}, mode=0o750, owner=1000)

    async def body(backend):
        tests = Layer(archive=archive_of_files({"t": b"t"}), at="/ground/tests")
        await backend.create(
            SandboxSpec(key="one", base=image, workdir="/ground", layers=(tests,), env=(("MORE", "1"),))
        )
        result = await backend.run(
            "one",
            request(
                "1", "cat given; stat -c %a:%u . /tmp; readlink /app; ls /logs; echo $LEVEL $MORE; echo new >given"
            ),
        )
        return result, await backend.seal("one")

    result, sealed = docker(body)
    assert result.text == "from the image\n750:1000\n1777:0\nground\nagent\nverifier\nimage 1\n"
    assert find_file(sealed, "/ground/given") == b"new\n"
    assert find_file(sealed, "/ground/tests/t") == b"t"


def with_config(live, change, *, files=None, mode=0o755, owner=0):
    """The base image with files in /ground, /app a link there, and a change of its configuration, as the name of an image."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        directory = tarfile.TarInfo("ground")
        directory.type, directory.mode, directory.uid = tarfile.DIRTYPE, mode, owner
        tar.addfile(directory)
        link = tarfile.TarInfo("app")
        link.type, link.linkname = tarfile.SYMTYPE, "ground"
        tar.addfile(link)
        for name, data in (files or {}).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    client = client_of(live)
    container = client("create", live.daemon.image, "bash").strip()
    client("cp", "-", f"{container}:/", data=stream.getvalue())
    image = f"t1-test-{os.urandom(4).hex()}"
    client("commit", "--change", change, container, image)
    client("rm", container)
    return image


def test_a_stand_in_image_that_the_daemon_lacks_is_said_before_anything_starts(docker):
    async def main():
        backend = DockerBackend(docker.root, name="b", socket=docker.daemon.socket, image="no-such-image")
        with pytest.raises(SandboxUnavailable, match="no-such-image"):
            async with backend.running():
                pass

    anyio.run(main)


def test_where_sandboxes_have_bases_of_their_own_no_stand_in_need_be_there(docker):
    settings = SandboxConfig(backend="docker", docker=DockerConfig(socket=docker.daemon.socket, image="no-such-image"))

    async def main():
        backend = make_backend(settings, docker.root, name="b")
        async with backend.running():
            await backend.create(SandboxSpec(key="one", base=docker.daemon.image))
            await backend.kill("one")

    anyio.run(main)
    docker.assert_nothing_left()


def test_without_a_daemon_the_reason_and_what_to_install_are_said(tmp_path):
    pytest.importorskip("aiodocker", reason="needs aiodocker: pip install -e '.[docker]'")

    async def main():
        settings = SandboxConfig(backend="docker", docker=DockerConfig(socket=str(tmp_path / "none")))
        with pytest.raises(SandboxUnavailable, match=r"apt-get install docker\.io"):
            async with make_backend(settings, tmp_path / "s", name="b").running():
                pass

    anyio.run(main)


@pytest.mark.slow
@pytest.mark.usefixtures("docker_daemon")
def test_where_the_daemon_remaps_users_root_inside_is_no_user_of_the_host(tmp_path):
    with own_daemon(remaps_users=True) as daemon:
        live = Live(tmp_path / "sandboxes", daemon)
        layers = (
            Layer(archive=archive_of_files({"given": b"given\n"}), at="/app"),
            Layer(archive=archive_of_files({"t": b"t\n"}), at="/tests", read_only=True),
        )

        async def body(backend):
            created = await backend.create(SandboxSpec(key="one", layers=layers))
            look = "stat -c %u /app/given /tests/t; cat /proc/self/uid_map; rm /etc/hosts; touch /tests/x || echo kept"
            return created.isolation, await backend.run("one", request("1", look)), await backend.seal("one")

        isolation, result, sealed = live(body)
        assert isolation.uid_map == f"0 {FIRST_REMAPPED_ID} 65536"
        assert "user" in isolation.namespaces
        assert not any("user 0" in warning for warning in isolation.warnings)
        assert result.text.split()[:5] == ["0", "0", *isolation.uid_map.split()]
        assert result.text.endswith("Read-only file system\nkept\n")
        assert find_file(sealed, "/app/given") == b"given\n"
        assert [member.name for member in walk(sealed) if member.kind == "W"] == [b"hosts"]


@pytest.mark.slow
@pytest.mark.usefixtures("docker_daemon")
def test_where_the_daemon_remaps_users_a_sandbox_has_a_network_too(tmp_path):
    """Its network namespace belongs to a user namespace whose root is the sandbox's, and that one can change it no more."""
    if reason := why_no_network():
        pytest.skip(f"network: {reason}")
    with own_daemon(remaps_users=True) as daemon:
        live = Live(tmp_path / "sandboxes", daemon)

        async def body(backend):
            await backend.create(SandboxSpec(key="one", network="internet"))
            change = "for change in 'link set tap0 down' 'route del 10.0.0.0/8'; do ip $change 2>&1; done"
            write = "for f in $(find /proc/sys/net -type f); do test -w $f && echo $f; done; grep -o tap0 /proc/net/dev"
            return [(await backend.run("one", request(str(n), c))).text for n, c in enumerate((change, write))]

        changed, written = live(body)
        assert changed.count("Operation not permitted") == 2
        assert written == "tap0\n"


@pytest.mark.parametrize(
    ("one", "other"), [("a%2Fb", "a_.2Fb"), ("a_b", "a__b"), ("%41", "_.41"), ("a", "a_"), ("x%5F", "x_.5F")]
)
def test_different_sandboxes_have_different_containers(one, other):
    assert container_name("t1-", one) != container_name("t1-", other)
    assert set(container_name("t1-", one)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def test_a_daemon_that_is_not_there_is_an_error_with_its_step(tmp_path):
    with pytest.raises(DaemonFailed) as caught:
        Daemon(str(tmp_path / "none")).ask("looking", "GET", "/info")
    assert (caught.value.step, caught.value.status) == ("looking", 0)
    assert "No such file" in caught.value.reason
