"""A sandbox's way to the Internet: slirp4netns, run outside by the shim, behind a device in the sandbox's network namespace.

slirp4netns is a network stack in an ordinary process: what the sandbox sends to ``tap0`` it sends again from sockets of its
own. So nothing inside shares the host's network namespace, nobody can connect in, and the host needs no bridge, address
translation or forwarding.

Guarantees: the host's loopback and abstract sockets are out of reach, but for port 53 of a resolver that the host itself has
there. IPv4 only. ``refused`` addresses answer "no route": the routes that say so are in the sandbox's network namespace,
which root inside does not own. The process has no privilege but binding low ports, sees no file but /etc and /run, and ends
with the shim, whatever ends that one: by the parent-death signal, and by the end of a pipe. It never joins the sandbox's
pid namespace. Where its standard output goes, the sandbox's log, is how the reaper finds it.

Left to others: what to do when it ends before the sandbox (``shim.server``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.wire import INTERNET, OWN_ADDRESSES

TOOL = "slirp4netns"
FIX = f"Install {TOOL} (on Debian: apt-get install {TOOL}) and have /dev/net/tun; `t1 doctor` tries it"
RESOLV_CONF = "nameserver 10.0.2.3\n"
"""What slirp4netns answers at with the host's own resolver."""
_NAMESPACE_FD, _READY_FD, _EXIT_FD = 3, 4, 5
_ARGUMENTS = (
    "--configure",
    "--mtu=65520",
    "--disable-host-loopback",
    "--enable-sandbox",
    "--enable-seccomp",
    "--netns-type=path",
    f"--ready-fd={_READY_FD}",
    f"--exit-fd={_EXIT_FD}",
    f"/proc/self/fd/{_NAMESPACE_FD}",
    "tap0",
)
# Connections, each with buffers of its own, and what it may write into the log.
_LIMITS = ((resource.RLIMIT_NOFILE, 1024), (resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_CORE, 1))
_READY_PATIENCE_MS = 10_000
_SAID_BYTES = 2000


class Network(NamedTuple):
    """A running slirp4netns. ``pid_fd`` is readable when it has ended; ``active`` is what to record of it."""

    pid: int
    pid_fd: int
    exit_fd: int
    active: str

    def stop(self) -> None:
        """It is dead and reaped when this returns."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pid_fd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # a shim that adopts orphans may have met it
            os.waitpid(self.pid, 0)
        os.close(self.pid_fd)
        os.close(self.exit_fd)


def find_tool() -> str:
    """Where slirp4netns is. Raises ``StepFailed``."""
    for directory in os.get_exec_path():
        path = f"{directory}/{TOOL}"
        if path.startswith("/") and os.access(path, os.X_OK):
            return path
    raise StepFailed("finding slirp4netns, which gives a sandbox its network", errno.ENOENT, fix=FIX)


def start_network(pid: int, refused: Sequence[str]) -> Network:
    """Give the network namespace of process ``pid``, which is not this one's, a device and a way out. ``refused`` are
    addresses with prefix lengths, and ``OWN_ADDRESSES`` for the host's.

    Raises ``StepFailed``: what is missing, or what slirp4netns said.
    """
    tool = find_tool()
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        blocks = [block for name in refused for block in (_own_addresses() if name == OWN_ADDRESSES else [name])]
        with linux.network_namespace(namespace):
            for block in blocks:
                linux.refuse_addresses(block)
        active = f"{INTERNET} by {TOOL}; refused: {', '.join(refused) or 'none'}"
        return _start(tool, namespace, active)
    finally:
        os.close(namespace)


def _start(tool: str, namespace: int, active: str) -> Network:
    ready, their_ready = os.pipe2(os.O_CLOEXEC)
    their_exit, exit_fd = os.pipe2(os.O_CLOEXEC)
    said_before = os.fstat(2).st_size
    linux.fork_outside()
    shim = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_tool(tool, shim, (namespace, their_ready, their_exit))
    os.close(their_ready)
    os.close(their_exit)
    network = Network(pid, os.pidfd_open(pid), exit_fd, active)
    try:
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        if not poll.poll(_READY_PATIENCE_MS) or not os.read(ready, 1):
            network.stop()
            raise _Refused(_said_since(said_before))
    finally:
        os.close(ready)
    return network


class _Refused(StepFailed):
    def __init__(self, said: str) -> None:
        super().__init__("starting slirp4netns", 0, fix=FIX)
        self.reason = said or "it ended, or was not ready in time, and said nothing"


def _become_tool(tool: str, shim: int, descriptors: tuple[int, int, int]) -> NoReturn:
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() == shim:  # else it died before the signal was asked for
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            # By way of high numbers, for one may be where another has to go.
            high = [os.dup2(fd, 100 + number) for number, fd in enumerate(descriptors)]
            for fd, target in zip(high, (_NAMESPACE_FD, _READY_FD, _EXIT_FD), strict=True):
                os.dup2(fd, target)
            linux.close_all_but((_NAMESPACE_FD, _READY_FD, _EXIT_FD))
            for limit, value in _LIMITS:
                hard = resource.getrlimit(limit)[1]
                value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(limit, (value, value))
            os.execve(tool, [TOOL, *_ARGUMENTS], {})
    finally:  # whatever happens, a child never goes on as a second shim
        os._exit(70)


def _own_addresses() -> list[str]:
    """The host's IPv4 addresses as they are now, beside its loopback's."""
    found: set[str] = set()
    address = ""
    with open("/proc/self/net/fib_trie") as file:
        for line in file:
            words = line.split()
            if words[:1] == ["|--"]:
                address = words[1]
            elif words[1:] == ["host", "LOCAL"] and not address.startswith("127."):
                found.add(f"{address}{words[0]}")
    return sorted(found)


def _said_since(offset_bytes: int) -> str:
    """What was written into the sandbox's log, this process's standard error."""
    with open("/proc/self/fd/2", "rb") as log:
        log.seek(offset_bytes)
        return " / ".join(log.read(_SAID_BYTES).decode(errors="replace").split("\n")).strip(" /")
