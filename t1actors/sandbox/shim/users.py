"""Which user ids a sandbox has: a range of its own, a shared one, or the one of whoever runs it.

Three ways, and what the kernel says in /proc/self/uid_map tells which one the fork server is in:

    root       root of the host: 65,536 ids far above all others, of each sandbox alone
    subuid     an ordinary user, in a user namespace that also has what /etc/subuid gives (``outer``): 65,536 of those
    one uid    an ordinary user, in a user namespace with nobody else: the sandbox's root is that user outside

Guarantees: no two live sandboxes have the same ids but where ``warnings`` says so; a range is given back by the kernel when
its shim ends, whatever the cause (the claim is an abstract socket's name).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.linux import StepFailed

IDS = 65_536
"""What a whole range has."""
_EVERYBODY = 0xFFFFFFFF
_FIRST_OF_ROOTS = 0x10000000
_RANGES_OF_ROOT = 8192
_SHARERS = 8192
SHARED = "other sandboxes may have the same user ids: /etc/subuid gives too few for each to have its own"


class Range(NamedTuple):
    """``first`` is the sandbox's root where its shim is, ``outside`` what that is on the host."""

    first: int
    outside: int
    size: int


class Claimed(NamedTuple):
    """The ids of one sandbox, held as long as this process lives. ``creator`` is the id that makes its user namespace, which
    no other sandbox's does, so that processes are counted apart; None where there is only one id."""

    ids: Range
    creator: int | None
    warnings: tuple[str, ...] = ()

    @property
    def mapping(self) -> str:
        """The line for /proc/PID/uid_map."""
        return f"0 {self.ids.first} {self.ids.size}"

    @property
    def recorded(self) -> str:
        """That line as the host sees it."""
        return f"0 {self.ids.outside} {self.ids.size}"


class Users(NamedTuple):
    """What the fork server found out. ``privileged``: it is root of the host. ``ranges`` are the whole ones of an ordinary
    user; ``why_one`` says why there is none."""

    privileged: bool
    ranges: tuple[Range, ...] = ()
    why_one: str = ""

    def claim(self) -> Claimed:
        """Raises ``StepFailed`` where all are taken."""
        if self.privileged:
            ranges = (Range(first, first, IDS) for first in _roots_ranges())
            claimed = next((ids for ids in ranges if _is_free(f"{ids.outside}")), None)
            if claimed is None:
                raise StepFailed(f"claiming user ids: all {_RANGES_OF_ROOT} ranges are taken", errno.EADDRINUSE)
            return Claimed(claimed, claimed.first)
        if not self.ranges:
            user = next(_lines(_read_map("uid_map"))).outside
            warning = (
                f"one user id only ({self.why_one}): root inside is user {user} outside, and there are no other users"
            )
            return Claimed(Range(0, user, 1), None, (warning,))
        *own, shared = self.ranges  # nobody has the last one alone, so that whoever has another one does
        for ids in own:
            if _is_free(f"{ids.outside}"):
                return Claimed(ids, ids.first)
        for number in _from_somewhere(_SHARERS):
            if _is_free(f"{shared.outside}.{number}"):
                return Claimed(shared, shared.first + number, (SHARED,))
        raise StepFailed(f"claiming user ids: {_SHARERS} sandboxes share the last range", errno.EADDRINUSE)


def is_root_of_the_host() -> bool:
    """Whether this process is root, and not of a user namespace only."""
    return os.geteuid() == 0 and sum(ids.size for ids in _lines(_read_map("uid_map"))) >= _EVERYBODY


def users_of_this_process(why_one: str = "") -> Users:
    """What the process may give to sandboxes; an ordinary user's has entered its own user namespace before (``outer``)."""
    if is_root_of_the_host():
        return Users(privileged=True)
    whole = [
        Range(ids.first + start, ids.outside + start, IDS)
        for ids in _lines(_read_map("uid_map"))
        for start in range(0, ids.size - IDS + 1, IDS)
    ]
    return Users(privileged=False, ranges=tuple(whole), why_one=why_one)


def _roots_ranges() -> Iterator[int]:
    return (_FIRST_OF_ROOTS + number * IDS for number in _from_somewhere(_RANGES_OF_ROOT))


def _from_somewhere(count: int) -> Iterator[int]:
    """All numbers below ``count``, from where others are unlikely to have begun."""
    start = os.getpid()
    return ((start + offset) % count for offset in range(count))


def _is_free(name: str) -> bool:
    return linux.claim_name(f"t1actors-uids-{name}") is not None


def _lines(uid_map: str) -> Iterator[Range]:
    for line in uid_map.splitlines():
        first, outside, count = map(int, line.split())
        yield Range(first, outside, count)


def _read_map(name: str) -> str:
    with open(f"/proc/self/{name}") as file:
        return file.read()
