"""The processes of a crew: ``python -m t1actors.train.worker DESCRIPTOR...``, started by ``train.crew`` and by nobody
else.

The command loads torch and the networks' code once, then forks a worker for each descriptor (its end of a socket pair),
which answers what ``jobs`` describes. Itself it does nothing more than hold the workers: memory that is loaded is
shared, and starting three workers costs hardly more than starting one.

Guarantees: no worker outlives the process that started the crew. The command ends its workers, and then itself, when
its stdin ends; a worker is killed by the kernel when the command dies in any other way.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> NoReturn:
    """Serve steps until whoever started this process goes away; ``argv``: descriptors of its channels."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    descriptors = [int(text) for text in argv]
    # What is loaded is never garbage, and collecting in it would make copies of memory that the workers share.
    gc.disable()
    from t1actors.train import rank_server  # loads torch: before the forks, and not before the signal is set

    gc.freeze()
    gc.enable()
    own = os.getpid()
    workers: list[int] = []
    for descriptor in descriptors:
        pid = os.fork()
        if pid == 0:
            # The signal comes when the thread that forked ends: this one, which lasts as long as the command.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != own:
                os._exit(1)
            for other in descriptors:
                if other != descriptor:
                    os.close(other)  # or its end would not be noticed
            os._exit(rank_server.serve(socket.socket(fileno=descriptor)))
        workers.append(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    while os.read(0, 4096):
        pass
    for pid in workers:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so nobody else's
    for pid in workers:
        os.waitpid(pid, 0)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
