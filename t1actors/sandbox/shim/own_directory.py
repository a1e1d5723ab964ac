"""Whose a sandbox's directory is by now: somebody may have deleted it, and another sandbox of the same name may have come.

A directory is known by the log in it, which its shim holds open for its whole life: that inode can be nobody else's
meanwhile, while names, and inodes of what was deleted, come back. The reaper finds shims by the same file.
"""

from __future__ import annotations

import os

LOG_FD = 1
"""The shim's own log, which is all it prints to."""


def is_anothers(directory: str) -> bool:
    """Whether there is a ``directory`` and this shim does not write its log there: then what is named after it (control
    groups, a container) is another's as well. Asked by a shim."""
    try:
        here = os.stat(f"{directory}/log", follow_symlinks=False)
    except FileNotFoundError:
        return os.path.isdir(directory)
    except NotADirectoryError:
        return False
    return not os.path.samestat(here, os.fstat(LOG_FD))
