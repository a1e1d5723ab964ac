"""A sandbox with a network: what it reaches, what it never reaches, and what is left when any part of it dies."""

import os
import select
import shutil
import signal
import socket
import subprocess

import pytest

from t1actors.sandbox.errors import SandboxDied, SandboxGone, SandboxRefused, SandboxUnavailable
from t1actors.sandbox.interface import RunRequest, SandboxSpec
from t1actors.sandbox.reaper import reap
from tests.sandbox.remote import ASK, HERE, PORT, THERE, remote_or_skipped, server_at, why_no_network

ANSWERS = "HTTP/1.0 "
TOOL = "slirp4netns"
BOUND = """python3 -c '
import socket
for number, place in ((socket.SO_BINDTODEVICE, b"tap0"), (socket.SO_DONTROUTE, 1)):
    s = socket.socket()
    s.settimeout(5)
    s.setsockopt(socket.SOL_SOCKET, number, place)
    try:
        s.connect(("{}", {}))
        print("reached")
    except OSError as error:
        print("not reached")
'"""
"""Connects past the routes: by the device alone."""


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """Another host answers at ``THERE``."""
    with remote_or_skipped(str(tmp_path_factory.mktemp("served"))):
        yield


@pytest.fixture
def tool():
    if reason := why_no_network():
        pytest.skip(f"network: {reason}")


def tools(live):
    return [pid for pid, name in live.processes() if name == TOOL]


async def ran(backend, command, number=1):
    return (await backend.run("one", RunRequest(key=str(number), command=command, limit_s=20.0))).text


def test_another_host_is_reached_with_a_network_and_not_without(live, remote):
    async def body(backend):
        found = {}
        for network in ("none", "internet"):
            made = await backend.create(SandboxSpec(key="one", network=network))
            found[network] = await ran(backend, ASK.format(THERE, PORT) + "; cat /etc/resolv.conf")
            recorded = made.isolation.network
            assert recorded.startswith("internet by slirp4netns; refused: host, 10.0.0.0/8") or recorded == network
            await backend.kill("one")
        return found

    found = live(body)
    assert "Network is unreachable" in found["none"]
    assert ANSWERS not in found["none"]
    assert found["internet"].startswith(ANSWERS)
    assert found["internet"].endswith("nameserver 10.0.2.3\n")


@pytest.mark.parametrize("network", ["none", "internet"])
def test_the_loopback_and_the_abstract_sockets_of_the_host_are_out_of_reach(live, tool, network):
    name = f"t1-tests-{os.getpid()}"
    with server_at("127.0.0.1") as port, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()

        async def body(backend):
            await backend.create(SandboxSpec(key="one", network=network, refused_addresses=()))
            asked = [ASK.format(at, port) for at in ("127.0.0.1", "10.0.2.2", "10.0.2.3", "0.0.0.0", "255.255.255.255")]
            said = [await ran(backend, command, n) for n, command in enumerate(asked)]
            connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
            return [*said, await ran(backend, f'python3 -c "{connect}" 2>&1', "unix")]

        said = live(body)
    assert not [text for text in said if ANSWERS in text]
    assert "Connection refused" in said[0]
    assert "ConnectionRefusedError" in said[-1]


def test_refused_addresses_are_not_reached_by_the_device_alone_either(live, remote):
    """Routes refuse them; who asks for the device and no route finds nobody who answers there."""

    async def body(backend):
        await backend.create(SandboxSpec(key="one", network="internet", refused_addresses=(f"{THERE}/32",)))
        said = await ran(backend, ASK.format(THERE, PORT)), await ran(backend, BOUND.format(THERE, PORT), 2)
        await backend.kill("one")
        await backend.create(SandboxSpec(key="one", network="internet", refused_addresses=()))
        return *said, await ran(backend, ASK.format(THERE, PORT))

    by_route, by_device, unrefused = live(body)
    assert "No route to host" in by_route
    assert by_device == "not reached\nnot reached\n"
    assert unrefused.startswith(ANSWERS)


def test_the_hosts_own_addresses_and_the_metadata_service_are_refused_unless_a_run_says_otherwise(namespaces, remote):
    with server_at(HERE) as port:

        async def body(backend):
            await backend.create(SandboxSpec(key="one", network="internet"))
            own, metadata = ASK.format(HERE, port), ASK.format("169.254.169.254", 80)
            said = [await ran(backend, own), await ran(backend, metadata, 2)]
            await backend.kill("one")
            await backend.create(SandboxSpec(key="one", network="internet", refused_addresses=("10.0.0.0/8",)))
            return [*said, await ran(backend, own)]

        own, metadata, allowed = namespaces(body)
    assert "No route to host" in own
    assert "No route to host" in metadata
    assert allowed.startswith(ANSWERS)


def test_root_inside_cannot_change_its_network(live, remote):
    changes = (
        "ip link set tap0 down", "ip link set tap0 address 02:00:00:00:00:01", "ip addr add 127.0.0.5/8 dev tap0",
        "ip route del 169.254.0.0/16", "ip route add 1.2.3.4 via 10.0.2.2",
        "ip neigh add 1.2.3.4 lladdr 02:00:00:00:00:01 dev tap0",
        "ip tuntap add dev tap1 mode tap",
    )  # fmt: skip

    async def body(backend):
        await backend.create(SandboxSpec(key="one", network="internet"))
        script = "; ".join(f"{change} >/dev/null 2>&1 && echo '{change}'" for change in changes)
        values = "for f in $(find /proc/sys/net -type f); do test -w $f && echo $f; done"
        raw = """python3 -c '
import socket
for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):
    try:
        socket.socket(family, kind, 1)
        print("opened")
    except OSError:
        pass
'"""
        said = [await ran(backend, command, n) for n, command in enumerate((script, values, raw))]
        return said, await ran(backend, ASK.format(THERE, PORT), "still")

    said, still = live(body)
    assert said == ["", "", ""]
    assert still.startswith(ANSWERS)


def test_what_gives_the_network_is_not_seen_inside_and_outlives_the_end_of_all_commands(live, remote):
    """A time limit kills every process inside; the network is none of them."""

    async def body(backend):
        await backend.create(SandboxSpec(key="one", network="internet"))
        await backend.run("one", RunRequest(key="long", command="sleep 60", limit_s=0.2))
        names = await ran(backend, "cat /proc/[0-9]*/comm")
        return names, await ran(backend, ASK.format(THERE, PORT), 2)

    names, answer = live(body)
    assert TOOL not in names
    assert answer.startswith(ANSWERS)


def test_a_seal_and_a_kill_leave_nothing_of_it(live, tool):
    async def body(backend):
        await backend.create(SandboxSpec(key="one", network="internet"))
        before = len(tools(live))
        await backend.seal("one")
        sealed = len(tools(live))
        await backend.kill("one")
        await backend.create(SandboxSpec(key="one", network="internet"))
        await backend.kill("one")
        return before, sealed, len(tools(live))

    assert live(body) == (1, 0, 0)


def test_a_shim_that_is_killed_takes_it_along(live, tool):
    async def body(backend):
        await backend.create(SandboxSpec(key="one", network="internet"))
        [pid] = tools(live)
        watched = os.pidfd_open(pid)
        live.signal("t1-shim", signal.SIGKILL)
        ended = signal_ended(watched)
        with pytest.raises(SandboxGone):
            await backend.run("one", RunRequest(key="1", command="true", limit_s=5.0))
        return ended

    assert live(body)


def signal_ended(pid_fd):
    """Waits for the process behind the descriptor."""
    try:
        return bool(select.select([pid_fd], [], [], 20.0)[0])
    finally:
        os.close(pid_fd)


def test_a_network_that_ends_ends_the_sandbox_which_can_still_be_sealed(live, tool):
    """The trial would go on under other conditions than its task asks for, so infrastructure is at fault."""

    async def body(backend):
        await backend.create(SandboxSpec(key="one", network="internet"))
        await ran(backend, "echo kept > /app/file")
        [pid] = tools(live)
        watched = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        signal_ended(watched)
        with pytest.raises(SandboxDied, match="its network ended: internet by slirp4netns") as died:
            await ran(backend, "true", 2)
        return died.value.cause, await backend.seal("one")

    cause, archive = live(body)
    assert cause == "killed"
    assert b"kept\n" in archive


def test_without_the_tool_a_sandbox_with_a_network_is_refused_with_the_fix(namespaces, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    async def body(backend):
        with pytest.raises(SandboxUnavailable, match="apt-get install slirp4netns"):
            await backend.create(SandboxSpec(key="one", network="internet"))
        return (await backend.create(SandboxSpec(key="one"))).isolation.network

    assert namespaces(body) == "none"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"network": "host"}, "network = 'host': there are none and internet"),
        ({"refused_addresses": ("10.0.0.1/8",)}, "'10.0.0.1/8' is no block of IPv4 addresses"),
        ({"refused_addresses": ("10.0.0.1",)}, "write 10.0.0.1/32"),
        ({"refused_addresses": ("fd00::/8",)}, "is no block of IPv4 addresses"),
    ],
)
def test_a_network_that_is_none_is_refused(namespaces, spec, says):
    async def body(backend):
        with pytest.raises(SandboxRefused, match=says):
            await backend.create(SandboxSpec(key="one", **spec))

    namespaces(body)


def test_the_reaper_finds_one_whose_shim_is_dead_by_its_log(tmp_path, host_makes_sandboxes):
    """None is ever left by itself, so something stands in that has its name and holds such a log."""
    shutil.copy("/usr/bin/sleep", tmp_path / TOOL)
    (tmp_path / "sandboxes/one").mkdir(parents=True)
    with open(tmp_path / "sandboxes/one/log", "w") as log:
        process = subprocess.Popen([tmp_path / TOOL, "600"], stdout=log)
    with open(tmp_path / "log", "w") as log:
        other = subprocess.Popen([tmp_path / TOOL, "600"], stdout=log)
    try:
        found = reap(tmp_path / "sandboxes")
        assert ("process", f"{TOOL} {process.pid} of one", "") in [(f.kind, f.name, f.trouble) for f in found]
        assert (process.wait(10), other.poll()) == (-signal.SIGKILL, None)
    finally:
        for each in (process, other):
            each.kill()
            each.wait()
