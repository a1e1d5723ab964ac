"""The system calls that the standard library does not offer, each failing with the name of its step.

Guarantees: a call either did what it says or raised ``StepFailed``, whose ``step`` is what a person is told. Nothing here
keeps state. Sockets and small files are plain descriptors: a fork pays for every page it touches, and the classes of
``socket`` and of text files touch a hundred. Only x86-64 and 64-bit ARM Linux are known (``seccomp`` refuses the rest).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Generator, Iterable
from fcntl import ioctl

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_ANY_NAMESPACE = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_SYS_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_ON_ONE_MOUNT = 0x01
_RESOLVE_BENEATH_WITHOUT_LINKS = 0x08 | 0x04 | 0x02  # BENEATH, NO_SYMLINKS, NO_MAGICLINKS
_RESOLVE_IN_ROOT = 0x10 | 0x02  # IN_ROOT, NO_MAGICLINKS
_SYS_OPEN_TREE = 428  # these three too
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_READ_ONLY_NOSUID_NODEV_IDMAP = 0x1 | 0x2 | 0x4 | 0x00100000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x1 | 0x40
_SIOCADDRT = 0x890B
_RTF_UP_REJECT = 0x1 | 0x200
_AF_UNIX = 1
_AF_INET = 2
_SOCK_DGRAM = 2
_SOCK_NONBLOCK = 0o4000
_SOCK_CLOEXEC = 0o2000000
_LAST_DESCRIPTOR = 0xFFFFFFFF

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


class StepFailed(Exception):
    """``step`` failed with ``error_number``. ``fix``: what helps, where that is not what helps every sandbox here."""

    def __init__(self, step: str, error_number: int, *, fix: str = "") -> None:
        name = errno.errorcode.get(error_number, str(error_number))
        super().__init__(f"{step}: {os.strerror(error_number)} ({name})")
        self.step = step
        self.error_number = error_number
        self.reason = f"{os.strerror(error_number)} ({name})"
        self.fix = fix


def _check(result: int, step: str) -> None:
    if result < 0:
        raise StepFailed(step, ctypes.get_errno())


def unshare(flags: int, what: str) -> None:
    """Leave the namespaces of ``flags``; ``what`` names them in errors."""
    _check(_libc.unshare(flags), f"unshare {what}")


def enter(pid_fd: int, flags: int, what: str) -> None:
    """Enter the namespaces ``flags`` of the process behind ``pid_fd``; the pid namespace is its children's only. A mount or
    pid namespace that this process is in already is refused: what follows would be done to the host."""
    with open(f"/proc/self/fdinfo/{pid_fd}") as file:
        pid = next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
    for flag, name in ((CLONE_NEWNS, "mnt"), (CLONE_NEWPID, "pid")):
        if flags & flag and (pid <= 0 or _is_shared(pid, name)):
            raise StepFailed(f"enter {what}: that process has ended, or is none of a container", errno.ESRCH)
    _check(_libc.setns(pid_fd, flags), f"enter {what}")


def _is_shared(pid: int, namespace: str) -> bool:
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/ns/{namespace}"), os.stat(f"/proc/self/ns/{namespace}"))
    except FileNotFoundError:
        return True  # it has ended


def enter_all(pid_fd: int, *, user: bool) -> None:
    """Enter every namespace of the process behind ``pid_fd`` but the pid namespace: the working directory and root become
    its mount namespace's. ``user``: it has a user namespace that this process is not in."""
    flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    enter(pid_fd, flags | (CLONE_NEWUSER if user else 0), "the container's namespaces")


def fork_outside() -> None:
    """What this process forks from now on is in its own pid namespace, whatever it unshared before."""
    _set_namespace(os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC), CLONE_NEWPID, "the own pid namespace")


@contextlib.contextmanager
def network_namespace(namespace_fd: int) -> Generator[None]:
    """This process is in that network namespace while the block runs."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _check(_libc.setns(namespace_fd, CLONE_NEWNET), "enter the sandbox's network namespace")
    try:
        yield
    finally:
        _set_namespace(own, CLONE_NEWNET, "the own network namespace again")


def _set_namespace(fd: int, kind: int, what: str) -> None:
    try:
        _check(_libc.setns(fd, kind), f"enter {what}")
    finally:
        os.close(fd)


def mount(
    source: str, target: str | int, kind: str | None = None, *, flags: int = 0, options: str = "", named: str = ""
) -> None:
    """``target`` is a path or an open descriptor of the place; ``named`` is what to call it in an error."""
    at = f"/proc/self/fd/{target}" if isinstance(target, int) else target
    result = _libc.mount(
        os.fsencode(source), os.fsencode(at), kind.encode() if kind else None, flags, os.fsencode(options) or None
    )
    _check(result, f"mount {kind or source} on {named or at}")


def bind_read_only(source: str, target: int, *, named: str) -> None:
    """A read-only view of ``source`` at the open place ``target``: nothing under it is setuid or a device."""
    mount(source, target, flags=MS_BIND, named=named)
    # The descriptor still shows the place under the new mount, so the second step goes by what is mounted there now.
    covered = os.readlink(f"/proc/self/fd/{target}")
    mount(source, covered, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, named=f"{named} (read-only)")


def mount_with_owners(source: str, target: str, namespace_fd: int) -> None:
    """A read-only view of the directory ``source`` at ``target`` (nosuid, nodev), in which a file's user n of the host is
    what user n of the user namespace is."""
    flags = _OPEN_TREE_CLONE | _SOCK_CLOEXEC  # close-on-exec has the same bit everywhere
    tree = int(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags))
    _check(tree, f"opening {source} as a mount")
    try:
        attributes = struct.pack("QQQQ", _MOUNT_ATTR_READ_ONLY_NOSUID_NODEV_IDMAP, 0, 0, namespace_fd)
        result = _libc.syscall(_SYS_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
        _check(result, f"mapping the owners of {source} (keep images on ext4, xfs, btrfs or tmpfs, under Linux 5.19)")
        moved = _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
        _check(moved, f"mount {source} on {target}")
    finally:
        os.close(tree)


def unmount(target: str) -> None:
    """Detach the mount and all below it; it ends with its last user."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def make_current_directory_the_root() -> None:
    """The current directory, which must be a mount, becomes /; the old root is let go entirely."""
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    # Both roots are now stacked on /; "." still means the old one, and detaching it leaves the new one.
    _check(_libc.umount2(b".", MNT_DETACH), "detaching the host's root")
    os.chdir("/")


def set_file_system_ids(uid: int, gid: int) -> None:
    """Files made from now on belong to these ids, and permissions are checked as theirs. 0 gives root's back."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if _libc.setfsuid(0xFFFFFFFF) != uid:  # the call reports only by the value that stands
        raise StepFailed(f"setfsuid {uid}", errno.EPERM)


def forbid_inspection() -> None:
    """No process may trace this one or read its memory; its /proc entries belong to the host's root."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


def set_name(name: str) -> None:
    """What ``ps`` shows, cut to 15 bytes."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _check(_libc.prctl(_PR_SET_NAME, ctypes.addressof(buffer), 0, 0, 0), "PR_SET_NAME")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process the signal when its parent ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def keep_only_capabilities(keep: Iterable[int]) -> None:
    """Every other capability leaves the bounding, permitted, effective, inheritable and ambient sets for good."""
    kept = set(keep)
    for capability in range(64):
        if capability not in kept and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:
                break  # beyond the last capability this kernel has
            _check(-1, f"dropping capability {capability}")
    bits = sum(1 << capability for capability in kept)
    header = struct.pack("II", _CAPABILITY_VERSION_3, 0)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    _check(_libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)), "capset")


def install_filter(program: bytes) -> None:
    """No new privileges by exec from now on, and the seccomp ``program`` (packed sock_filter) on every system call."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header), 0, 0), "seccomp filter")


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor except 0, 1, 2 and ``keep``."""
    first = 3
    for fd in [*sorted(keep), _LAST_DESCRIPTOR + 1]:
        if fd > first:
            _check(_libc.close_range(ctypes.c_uint(first), ctypes.c_uint(fd - 1), 0), "close_range")
        first = max(first, fd + 1)


def open_beneath(directory_fd: int, path: str, flags: int, *, one_mount: bool = False) -> int:
    """Open ``path`` under the directory, never leaving it and never through a link; ``one_mount``: nor into what is mounted
    on it. Raises ``OSError``."""
    resolve = _RESOLVE_BENEATH_WITHOUT_LINKS | (_RESOLVE_ON_ONE_MOUNT if one_mount else 0)
    return _open_within(directory_fd, path, flags, resolve)


def open_in_root(directory_fd: int, path: str, flags: int) -> int:
    """Open ``path`` as a process would whose root the directory is: links are followed, and none leads out."""
    return _open_within(directory_fd, path, flags, _RESOLVE_IN_ROOT)


def _open_within(directory_fd: int, path: str, flags: int, resolve: int) -> int:
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)
    fd = _libc.syscall(_SYS_OPENAT2, directory_fd, os.fsencode(path.strip("/") or "."), how, len(how))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return int(fd)


def bring_loopback_up() -> None:
    """In the network namespace of this process."""
    any_socket = _socket(_AF_INET, "a socket for the loopback device")
    try:
        ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP_RUNNING))
    except OSError as error:
        raise StepFailed("bringing the loopback device up", error.errno or 0) from error
    finally:
        os.close(any_socket)


def refuse_addresses(block: str) -> None:
    """In the network namespace of this process: what is sent to the IPv4 addresses of ``block`` ("10.0.0.0/8") is refused
    there and then."""
    address, _, bits = block.partition("/")
    mask = (0xFFFFFFFF << (32 - int(bits))) & 0xFFFFFFFF
    target, netmask = (struct.pack("=H2x4s8x", _AF_INET, part) for part in (_packed(address), mask.to_bytes(4, "big")))
    route = struct.pack("@L16s16x16sHhLPhPLLH6x", 0, target, netmask, _RTF_UP_REJECT, 0, 0, 0, 0, 0, 0, 0, 0)
    any_socket = _socket(_AF_INET, "a socket for routes")
    try:
        ioctl(any_socket, _SIOCADDRT, route)
    except FileExistsError:
        return
    except OSError as error:
        raise StepFailed(f"refusing the addresses {block}", error.errno or 0) from error
    finally:
        os.close(any_socket)


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


def claim_name(name: str) -> int | None:
    """A descriptor that holds this name for its lifetime, or None if another process of this host holds it. The name is
    an abstract socket's, so the kernel gives it back whatever happens."""
    fd = _socket(_AF_UNIX, f"a socket to claim {name}")
    address = struct.pack("H", _AF_UNIX) + b"\0" + name.encode()
    if _libc.bind(fd, address, len(address)) < 0:
        error_number = ctypes.get_errno()
        os.close(fd)
        if error_number != errno.EADDRINUSE:
            raise StepFailed(f"claiming {name}", error_number)
        return None
    return fd


def _socket(family: int, what: str) -> int:
    fd = int(_libc.socket(family, _SOCK_DGRAM | _SOCK_CLOEXEC, 0))
    _check(fd, what)
    return fd


def accept(listener_fd: int) -> int:
    """A new connection's descriptor, non-blocking. Raises ``OSError``, ``BlockingIOError`` if there is none."""
    fd = int(_libc.accept4(listener_fd, None, None, _SOCK_NONBLOCK | _SOCK_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def write_file(path: str, text: str, *, directory_fd: int | None = None) -> None:
    """One write to an existing file, as kernel files want it. Raises ``OSError``, which names the path."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)
