"""Makes an ordinary user root of a user namespace, in which the fork server and all shims then live.

    python3 -I -S -m t1actors.sandbox.shim.outer PROGRAM ARGUMENT...      becomes PROGRAM, with why there is one uid only

In it 0 is the user, and from 1 on come what /etc/subuid and /etc/subgid give it, in whole ranges; newuidmap and newgidmap
(setuid programs of the package uidmap) may write that, the user alone only a map of itself. It is left again by none: each
sandbox's own user namespace is made below it, so that root inside owns neither mounts nor network here either.

Guarantees: nobody who is the host's root outside is let in, nor mapped. PROGRAM is executed, not called, so what the kernel
keeps of a process's memory belongs to the new namespace and its root can manage its children. Where the namespace can't be
entered, the step is told in the fork server's words.
"""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
import sys
from typing import NamedTuple

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.users import IDS

PROGRAMS = {"uid": "/usr/bin/newuidmap", "gid": "/usr/bin/newgidmap"}
_FILES = {"uid": "/etc/subuid", "gid": "/etc/subgid"}


class Ids(NamedTuple):
    """What the user may map, as (first outside, count) of whole ranges; ``why_one`` says what is missing where that is
    nothing."""

    uids: tuple[tuple[int, int], ...] = ()
    gids: tuple[tuple[int, int], ...] = ()
    why_one: str = ""


def find_ids() -> Ids:
    """What this user has, and the programs to map it."""
    for program in PROGRAMS.values():
        if not os.access(program, os.X_OK):
            return Ids(why_one=f"{program} is missing")
    try:
        names = (pwd.getpwuid(os.getuid()).pw_name, str(os.getuid()))
    except KeyError:
        return Ids(why_one=f"user {os.getuid()} has no name, and {PROGRAMS['uid']} wants one")
    found = {kind: _whole_ranges(path, names) for kind, path in _FILES.items()}
    for kind, ranges in found.items():
        if not ranges:
            return Ids(why_one=f"{_FILES[kind]} gives user {os.getuid()} no range of {IDS:,}")
    ranges = min(sum(count for _, count in found[kind]) for kind in found)
    uids, gids = (_first(found[kind], ranges) for kind in ("uid", "gid"))
    return Ids(uids, gids)


def enter(ids: Ids) -> None:
    """This process is then root of a new user namespace. Raises ``StepFailed``."""
    uid, gid = os.geteuid(), os.getegid()
    if os.stat("/proc/sys").st_uid == uid:
        raise StepFailed(
            "being an ordinary user: this is root of a user namespace, and the host's root outside", errno.EPERM
        )
    if ids.why_one:
        linux.unshare(linux.CLONE_NEWUSER, "user namespace")
        try:
            linux.write_file("/proc/self/setgroups", "deny")
            linux.write_file("/proc/self/gid_map", f"0 {gid} 1\n")
            linux.write_file("/proc/self/uid_map", f"0 {uid} 1\n")
        except OSError as error:
            raise StepFailed(f"mapping one user id ({error.filename})", error.errno or 0) from error
        return
    unshared, unshare = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:  # stays behind, for only from there the programs may map
        os.close(unshare)
        failed = 1
        try:
            failed = _map_parent(unshared, uid, gid, ids)
        except OSError as error:
            failed = error.errno or errno.EIO
        finally:
            os._exit(failed)
    try:
        linux.unshare(linux.CLONE_NEWUSER, "user namespace")
        os.write(unshare, b"U")
    finally:
        os.close(unshare)
        _, status = os.waitpid(child, 0)
    if status:
        raise StepFailed("newuidmap or newgidmap (its own words are on stderr)", errno.EPERM)


def _map_parent(unshared: int, uid: int, gid: int, ids: Ids) -> int:
    if not os.read(unshared, 1):  # it could not unshare, and says so itself
        return 0
    for kind, own, ranges in (("gid", gid, ids.gids), ("uid", uid, ids.uids)):
        line = ["0", str(own), "1"]
        first = 1
        for outside, count in ranges:
            line += [str(first), str(outside), str(count)]
            first += count
        command = [PROGRAMS[kind], str(os.getppid()), *line]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            return 1
    return 0


def _whole_ranges(path: str, names: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """The user's lines of /etc/subuid or /etc/subgid, cut to multiples of a whole range."""
    found: list[tuple[int, int]] = []
    try:
        with open(path) as file:
            for line in file:
                name, _, numbers = line.strip().partition(":")
                first, _, count = numbers.partition(":")
                if name in names and first.isdigit() and count.isdigit() and int(first) > 0 and int(count) >= IDS:
                    found.append((int(first), int(count) // IDS * IDS))
    except FileNotFoundError:  # nobody has any
        return ()
    return tuple(found)


def _first(ranges: tuple[tuple[int, int], ...], count: int) -> tuple[tuple[int, int], ...]:
    kept: list[tuple[int, int]] = []
    for first, some in ranges:
        if count > 0:
            kept.append((first, min(some, count)))
        count -= some
    return tuple(kept)


def main(command: list[str]) -> None:
    """Never returns."""
    ids = find_ids()
    try:
        enter(ids)
    except StepFailed as failure:
        os.write(1, f"refused \t{failure.step}\t{failure.reason}\n".encode())
        sys.exit(1)
    os.execv(command[0], [*command, ids.why_one])


if __name__ == "__main__":
    main(sys.argv[1:])
