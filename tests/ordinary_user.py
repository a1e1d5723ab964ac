"""Runs parts of tests as an ordinary user of this host, who exists for that test only.

    user = OrdinaryUser("subuid")
    result = user.run(lambda: ...)       # in a child: its own mount namespace, its own /etc/subuid, the user's ids

What the child sees of the host is what everybody sees, but that directories closed to others do not hide this Python and
this checkout from it. Needs root, to make the user up.
"""

import ctypes
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from itertools import count
from pathlib import Path

import anyio

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.outer import PROGRAMS

WAYS = ("subuid", "one uid")
"""How an ordinary user's sandboxes get their users."""
ROOT = Path(__file__).parent.parent
RANGE = 65_536
PR_SET_DUMPABLE = 4
FIRST_SUBORDINATE = 1 << 30
_numbers = count()


def why_no_ordinary_user(way):
    """Empty where one can be made up."""
    if os.geteuid() != 0:
        return "making up an ordinary user needs root"
    missing = [program for program in PROGRAMS.values() if not os.path.exists(program)]
    return f"{', '.join(missing)}: not here (Debian: apt-get install uidmap)" if missing and way == "subuid" else ""


class OrdinaryUser:
    """``ranges``: how many times 65,536 subordinate ids the user has. In ``directory`` the user may write; ``given`` is in
    it, for what the user may read."""

    def __init__(self, way, ranges=1):
        number = os.getpid() % 10_000 * 100 + next(_numbers) % 100  # no other session's, nor another test's
        self.uid = 100_000_000 + number
        self.first = FIRST_SUBORDINATE + number % 10_000 * RANGE
        self.ranges = ranges if way == "subuid" else 0
        self.way = way
        self.groups = []
        """Control groups that were given to the user, who then is in them."""
        self.directory = Path(tempfile.mkdtemp(prefix="t1-user-"))
        self.given = self.directory / "given"
        self.given.mkdir()
        os.chown(self.directory, self.uid, self.uid)

    def has(self, uid):
        """Whether that id is the user's, or one of the subordinate ones."""
        return uid == self.uid or self.first <= uid < self.first + self.ranges * RANGE

    def run(self, body):
        """What ``body()`` returns or raises; it runs in a child, whose memory is a copy of this process's."""
        anyio.run(anyio.sleep, 0, backend="trio")
        anyio.run(anyio.sleep, 0, backend="asyncio")  # imported while all can be read
        sys.stdout.flush()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            self._run_in_child(body, writer)
        os.close(writer)
        with open(reader, "rb") as file:
            told = file.read()
        _, status = os.waitpid(child, 0)
        assert told, f"the child ended without a word, status {status}"
        value, error, trace = pickle.loads(told)
        if error is not None:
            raise AssertionError(f"as user {self.uid}:\n{trace}") from error
        return value

    def remove(self):
        shutil.rmtree(self.directory)

    def _run_in_child(self, body, writer):
        try:
            self._become()
            told = (body(), None, "")
        except BaseException as error:  # noqa: BLE001
            told = (None, error, traceback.format_exc())
        try:
            data = pickle.dumps(told)
            pickle.loads(data)
        except Exception:  # noqa: BLE001  # an exception that can't be handed over: its text can
            data = pickle.dumps((None, AssertionError(repr(told[1])), told[2] or f"not picklable: {told[0]!r}"))
        with open(writer, "wb") as file:
            file.write(data)
        os._exit(0)

    def _become(self):
        for group in self.groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        linux.unshare(linux.CLONE_NEWNS, "a mount namespace for an ordinary user")
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        open_the_way_to(ROOT, Path(sys.prefix), Path(sys.base_prefix), self.directory)
        given = f"t1-user:{self.first}:{self.ranges * RANGE}\n" if self.ranges else ""
        known = f"{Path('/etc/passwd').read_text()}t1-user:x:{self.uid}:{self.uid}::/:/bin/sh\n"
        for name, text in (("subuid", given), ("subgid", given), ("passwd", known)):
            file = self.directory / name
            file.write_text(text)
            Path("/etc", name).touch()
            linux.mount(str(file), f"/etc/{name}", flags=linux.MS_BIND)
        os.setgroups([])
        os.setresgid(self.uid, self.uid, self.uid)
        os.setresuid(self.uid, self.uid, self.uid)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after exec: /proc/self belongs to the user
        os.environ["HOME"] = str(self.directory)


def open_the_way_to(*paths):
    """Where a directory above one of ``paths`` is closed to others, mount one there that holds nothing but the way."""
    covered = {}
    for path in paths:
        here = Path("/")
        for name in path.parts[1:]:
            if here not in covered and not here.stat().st_mode & 0o001:
                covered[here] = os.open(here, os.O_PATH)
                linux.mount("t1-way", str(here), "tmpfs", options="mode=755")
            if here in covered and not (here / name).exists():
                (here / name).mkdir()
                linux.mount(
                    f"/proc/self/fd/{covered[here]}/{name}", str(here / name), flags=linux.MS_BIND | linux.MS_REC
                )
            here = here / name
