"""What this host lets a sandbox be made of, tried one by one in a child process each: namespaces, mounts, a filter, limits.

Root of the host makes them as it is; an ordinary user, and root of a user namespace only, from a user namespace of its own
(``outer``), so each part is tried from there.

    python3 -I -S t1actors/sandbox/shim/abilities.py

Standard library only and quick, so that the set-up can refuse a host before it downloads anything, and ``t1 doctor`` can
say which part is missing where a whole sandbox (``sandbox.probe``) fails. Prints one JSON list of ``[name, works, found]``
and exits with 1 if a part that no sandbox can do without is missing. Changes nothing on the host.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.init import SHELL
from t1actors.sandbox.shim.limits import find_controllers
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.outer import Ids, enter, find_ids
from t1actors.sandbox.shim.rootfs import need_attributes_of_users
from t1actors.sandbox.shim.seccomp import build_program
from t1actors.sandbox.shim.users import IDS, is_root_of_the_host

_NAMESPACES = {
    "mount": linux.CLONE_NEWNS,
    "pid": linux.CLONE_NEWPID,
    "network": linux.CLONE_NEWNET,
    "ipc": linux.CLONE_NEWIPC,
    "uts": linux.CLONE_NEWUTS,
    "cgroup": linux.CLONE_NEWCGROUP,
}


class Ability(NamedTuple):
    """``found`` says what works, or which step failed and why."""

    name: str
    works: bool
    found: str


def abilities() -> list[Ability]:
    """All that a sandbox is made of; without any one of these, but hard limits, there is none."""
    return [
        _user(),
        _tried("namespaces", f"{', '.join(_NAMESPACES)}, user", _make_namespaces),
        _tried("mounts", "tmpfs, overlay, proc, devices", _make_mounts),
        _tried("seccomp", f"a filter for {os.uname().machine}", _install_filter),
        _shell(),
    ]


def hard_limits() -> Ability:
    """Control groups, found by making one. Without them limits are only watched."""
    found = find_controllers(f"t1-abilities-{os.getpid()}")
    pairs = (("memory", found.memory), ("pids", found.pids))
    parts = [f"{name}: {f'cgroup-v{c.version} at {c.parent}' if c else 'no group can be made'}" for name, c in pairs]
    return Ability("hard limits", None not in found, ", ".join(parts))


def _user() -> Ability:
    if is_root_of_the_host():
        return Ability("user", True, "root of the host")
    ids, user = find_ids(), f"user {os.geteuid()}"
    found = f"{user}, who has one id only: {ids.why_one}" if ids.why_one else f"{user}, {_counted(ids)} subordinate ids"
    return _tried("user", found, _make_namespace_of_users)


def separate_users() -> Ability:
    """Whether sandboxes have users, and each its own; without, graders are separated from what they grade by less."""
    if is_root_of_the_host():
        return Ability("separate users", True, "a range of ids for each sandbox")
    ids = find_ids()
    if ids.why_one:
        return Ability("separate users", False, f"one id only: {ids.why_one}")
    ranges = sum(count for _, count in ids.uids) // IDS
    found = f"{ranges} x {IDS:,} ids: {ranges - 1} sandboxes have ids of their own, the others share"
    return Ability("separate users", ranges > 1, found)


def _counted(ids: Ids) -> str:
    return f"{sum(count for _, count in ids.uids):,}"


def _make_namespace_of_users() -> None:
    if not is_root_of_the_host():
        enter(find_ids())


def _shell() -> Ability:
    works = os.access(SHELL, os.X_OK)
    return Ability("bash", works, SHELL if works else f"{SHELL} is missing or cannot be executed")


def _tried(name: str, works: str, body: Callable[[], None]) -> Ability:
    """``body`` runs in a child: what it takes on or gives up is gone with it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except StepFailed as error:
            os.write(writer, str(error).encode())
        except OSError as error:
            os.write(writer, f"{error.filename or 'a step'}: {error.strerror}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        failed = file.read().decode()
    _, status = os.waitpid(pid, 0)
    if status != 0:
        failed = f"the process that tried it was ended by signal {status & 0x7F}"
    return Ability(name, not failed, failed or works)


def _make_namespaces() -> None:
    _make_namespace_of_users()
    for name, flag in _NAMESPACES.items():
        linux.unshare(flag, f"{name} namespace")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("t1-abilities", "/usr", "tmpfs", named="a directory")
    os.chdir("/usr")
    linux.make_current_directory_the_root()
    # Last, as a sandbox does it: whoever was put into a chroot may make none before it has a root of its own.
    linux.unshare(linux.CLONE_NEWUSER, "user namespace")


def _make_mounts() -> None:
    privileged = is_root_of_the_host()
    _make_namespace_of_users()
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID, "mount and pid namespaces")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("t1-abilities", "/usr", "tmpfs", flags=linux.MS_NOSUID, options="size=1m", named="a directory")
    os.chdir("/usr")
    for name in ("lower", "upper", "work", "merged", "proc"):
        os.mkdir(name)
    options = "lowerdir=lower,upperdir=upper,workdir=work" + ("" if privileged else ",userxattr")
    linux.mount("t1-abilities", "merged", "overlay", options=options, named="a directory")
    if privileged:
        try:
            os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except OSError as error:
            raise StepFailed("making device nodes", error.errno or 0) from error
    else:
        need_attributes_of_users("work")
        Path("null").touch()
        linux.mount("/dev/null", "null", flags=linux.MS_BIND, named="/dev/null")
    pid = os.fork()
    if pid == 0:  # the first process of the pid namespace, whose /proc this is
        try:
            linux.mount("proc", "proc", "proc", named="a directory")
        except StepFailed as error:
            os._exit(error.error_number)
        os._exit(0)
    error_number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if error_number:
        raise StepFailed("mount proc in a new pid namespace", error_number)


def _install_filter() -> None:
    linux.install_filter(build_program(deny_memfd=False))


def main() -> int:
    """Print what was found as JSON; 0 when everything works."""
    found = abilities()
    print(json.dumps([*found, separate_users(), hard_limits()]))
    return 0 if all(ability.works for ability in found) else 1


if __name__ == "__main__":
    sys.exit(main())
