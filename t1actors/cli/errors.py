"""What the command line says when something is wrong, and with which exit status.

Exit status 0: done. 1: it failed, and the message says what, where and what to do. 2: the command or the configuration is
wrong. 130: interrupted.
"""

from __future__ import annotations

import errno

from t1actors.config import ConfigError
from t1actors.events import EventMalformed
from t1actors.images.errors import ImageError
from t1actors.log.errors import LogError
from t1actors.models.folder import ModelFolderError
from t1actors.observe.follow import NoRun
from t1actors.payloads import BlobError
from t1actors.runtime.errors import RuntimeFault, leaves
from t1actors.sandbox.errors import SandboxError
from t1actors.tasks.task import TaskError
from t1actors.verify.verdict import VerifyError

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


SHORTAGES = {
    errno.ENOSPC: "the disk is full: free some, or choose another place",
    errno.EDQUOT: "the disk quota is used up: free some, or choose another place",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.EMFILE: "too many files are open in this process: raise the limit, `ulimit -n 4096`",
    errno.ENFILE: "too many files are open on this machine: see fs.file-max",
    errno.ENOMEM: "memory ran out: free some, or allow more",
    errno.EAGAIN: "no more processes may be started: raise the limit (`ulimit -u`, or Docker's --pids-limit)",
}
"""What the machine had too little of, by the number of the error: such errors often name no file."""


REFUSALS = {
    errno.EACCES: "another user may, or root",
    errno.EISDIR: "a file should be there: name another place, or move it away",
    errno.ENOTDIR: "something on the way there is a file: name another place",
    errno.EEXIST: "name another place, or move it away",
    errno.ENOENT: "look at how the name is written, and at where it is meant from",
}
"""What a file or directory that is named is or is not, by the number of the error."""


class CommandFailed(Exception):
    """A command could not do what was asked. The message is all a person needs."""


class WrongUsage(Exception):
    """A command was called in a way that makes no sense."""


EXPECTED = (
    CommandFailed,
    EventMalformed,
    NoRun,
    LogError,
    BlobError,
    TaskError,
    SandboxError,
    ImageError,
    ModelFolderError,
    RuntimeFault,
    VerifyError,
)


def explain(error: BaseException) -> tuple[str, int] | None:
    """Message and exit status for an error that a person can do something about; None for a bug."""
    if isinstance(error, BaseExceptionGroup):
        found = [explain(leaf) for leaf in leaves(error)]
        return next((f for f in found if f is not None), None) if None not in found else None
    if isinstance(error, WrongUsage | ConfigError):
        return str(error), WRONG_USAGE
    if isinstance(error, EXPECTED):
        return str(error), FAILED
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        place = f"{error.filename}: " if error.filename is not None else ""
        known = SHORTAGES if not place else {**REFUSALS, **SHORTAGES}
        hint = known.get(error.errno or 0)
        if place or hint:
            return f"{place}{error.strerror}" + (f"; {hint}" if hint else ""), FAILED
    if isinstance(error, MemoryError):
        return SHORTAGES[errno.ENOMEM], FAILED
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    return None
