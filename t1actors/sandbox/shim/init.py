"""The first process inside a sandbox: it completes the isolation, then starts shells, reaps, and kills when told.

It is forked by the shim, which is root of the host or of an ordinary user's namespace (``outer``), into a new pid namespace.
It makes the other namespaces, mounts and enters the root with that power, and only then moves into a user namespace of its
own: so root inside owns neither the mount nor the network namespace, and no capability it has reaches them. Afterwards it
holds nothing of the host: no descriptor but its two pipes to the shim, no readable memory, no privilege to gain.

It speaks lines on two pipes. While it begins:  G the root is laid out; U the user namespace is made -> M it is mapped;
R ready, or E and what failed. Then:  S start a shell -> P pid | E reason;  K kill everything else -> K;  a shell that ends
is told as X pid status. When the shim goes away, the pipe ends and so does the whole pid namespace.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
from typing import NamedTuple, NoReturn

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.limits import Guard
from t1actors.sandbox.shim.linux import StepFailed, bind_read_only
from t1actors.sandbox.shim.rootfs import Root, enter_root
from t1actors.sandbox.shim.users import Claimed

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
STATUS_FD = 250
"""Where a shell reports that a command is done; closed for the commands themselves."""

# What root in the sandbox keeps: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE,
# SYS_CHROOT, SETFCAP: Docker's set without raw sockets, device nodes and the audit log.
KEPT_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31)
_READ_BYTES = 4096
SHELL = "/usr/bin/bash"
_SHELL_OF_AN_IMAGE = "/bin/bash"
"""Where an image without merged /usr has it."""
# What Python and the shim ignore, a shell must not: it would hand it on to everything it starts.
INHERITED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Inside(NamedTuple):
    """All that init needs to know."""

    root: Root
    guard: Guard
    users: Claimed
    memory_mb: int
    workdir: str
    environment: dict[str, str]
    filter_program: bytes
    orders_fd: int
    reports_fd: int
    status_fd: int


def run_init(inside: Inside) -> NoReturn:
    """Never returns and never raises into the caller's stack: this is a forked child."""
    try:
        _isolate(inside)
    except StepFailed as error:
        _report(inside, f"E{error.error_number} {error.step}")
        os._exit(1)
    except OSError as error:
        _report(inside, f"E{error.errno} setting up the first process inside ({error.filename})")
        os._exit(1)
    _report(inside, "R")
    _serve(inside)


def _report(inside: Inside, line: str) -> None:
    # A shim that is gone can't be told; its end of the other pipe says so soon enough.
    with contextlib.suppress(BrokenPipeError):
        os.write(inside.reports_fd, f"{line}\n".encode())


def _isolate(inside: Inside) -> None:
    ids = inside.users.ids
    kept_fds = (inside.orders_fd, inside.reports_fd, inside.status_fd)
    linux.set_name("t1-init")
    # The shim's handler is not for here; as pid 1 a default means that nobody inside can end this with a signal.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    linux.close_all_but(kept_fds)
    try:
        inside.guard.enter()
    except OSError as error:
        raise StepFailed("entering the control group", error.errno or 0) from error
    flags = linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP
    linux.unshare(flags, "network, ipc, uts and cgroup namespaces")
    linux.bring_loopback_up()
    socket.sethostname("sandbox")
    _await(inside, b"G\n")  # until now this mount namespace was the shim's, which laid out the root meanwhile
    linux.unshare(linux.CLONE_NEWNS, "mount namespace")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    shm_mb = max(1, min(64, inside.memory_mb // 2))
    enter_root(inside.root, ids=ids, shm_mb=shm_mb)
    linux.close_all_but(kept_fds)
    os.umask(0o022)
    settings = os.open("/proc/sys", os.O_PATH | os.O_DIRECTORY)
    _set_kernel_values(
        settings,
        # The network namespace is not the sandbox root's own, so ports below 1024 and ping are opened this way.
        ("net/ipv4/ip_unprivileged_port_start", "0"),
        ("net/ipv4/ping_group_range", f"{ids.first} {ids.first + ids.size - 1}"),
        ("kernel/shmall", str((inside.memory_mb << 20) // resource.getpagesize())),
    )
    # Where root inside is the user outside, some of them would be its own to change. The descriptor still leads below.
    bind_read_only("/proc/sys", settings, named="/proc/sys")
    limit_resources()
    creator = inside.users.creator
    if creator is not None:
        inside.guard.limit_processes()
        os.setgroups([])
        os.setresgid(creator, creator, creator)
        os.setresuid(creator, creator, creator)
    linux.unshare(linux.CLONE_NEWUSER, "user namespace")
    if creator is None:
        inside.guard.limit_processes()
    _report(inside, "U")
    _await(inside, b"M\n")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    _set_kernel_values(settings, ("user/max_user_namespaces", "0"))
    os.close(settings)
    linux.keep_only_capabilities(KEPT_CAPABILITIES)
    linux.install_filter(inside.filter_program)
    linux.forbid_inspection()
    linux.die_with_parent(signal.SIGKILL)  # last, since a change of ids takes it back


def limit_resources() -> None:
    """Of this process and all that it starts."""
    # A core limit of 1 byte stops dumps to files and, unlike 0, to a host's dump program.
    for limit, value in ((resource.RLIMIT_CORE, 1), (resource.RLIMIT_MEMLOCK, 1 << 16), (resource.RLIMIT_NOFILE, 4096)):
        hard = resource.getrlimit(limit)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)  # not every root may raise a limit
        resource.setrlimit(limit, (value, value))


def _await(inside: Inside, line: bytes) -> None:
    if os.read(inside.orders_fd, len(line)) != line:  # the shim gave up or is gone
        os._exit(1)


def _set_kernel_values(settings: int, *values: tuple[str, str]) -> None:
    for name, value in values:
        try:
            linux.write_file(name, value, directory_fd=settings)
        except FileNotFoundError:
            continue  # a kernel built without that feature has nothing to set
        except OSError as error:
            raise StepFailed(f"setting {name}", error.errno or 0) from error


def _serve(inside: Inside) -> NoReturn:
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    shells: set[int] = set()
    poll = select.poll()
    poll.register(inside.orders_fd, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if woken in ready:
            os.read(woken, _READ_BYTES)
            _reap(inside, shells)
        if inside.orders_fd in ready:
            order = os.read(inside.orders_fd, 2)
            if order == b"S\n":
                _start_shell(inside, shells)
            elif order == b"K\n":
                _kill_all(inside, shells)
            else:
                os._exit(0)  # the shim is gone


def _ignore(_signal_number: int, _frame: object) -> None:
    """The wake-up descriptor does the work; a handler must exist for it to be written."""


def _start_shell(inside: Inside, shells: set[int]) -> None:
    try:
        os.chdir(inside.workdir)
    except OSError:  # the trial deleted it
        os.chdir("/")
    try:
        pid = os.posix_spawn(
            SHELL if os.path.exists(SHELL) else _SHELL_OF_AN_IMAGE,
            ["bash", "--noprofile", "--norc", "/dev/.t1/in"],
            inside.environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, inside.status_fd, STATUS_FD)],
            setsid=True,
            setsigdef=INHERITED_SIGNALS,
        )
    except OSError as error:
        _report(inside, f"E{error.errno} starting the shell")
        return
    finally:
        os.chdir("/")
    shells.add(pid)
    _report(inside, f"P{pid}")


def _reap(inside: Inside, shells: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(inside, shells, pid, status)


def _kill_all(inside: Inside, shells: set[int]) -> None:
    """As pid 1, kill(-1) reaches every other process of the namespace, and all end as children of this one."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        _tell(inside, shells, pid, status)
    _report(inside, "K")


def _tell(inside: Inside, shells: set[int], pid: int, status: int) -> None:
    if pid in shells:
        shells.discard(pid)
        _report(inside, f"X{pid} {status}")
