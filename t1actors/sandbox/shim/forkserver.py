"""The fork server: a small single-threaded process that has everything imported and forks one shim per sandbox.

It reads lines from its standard input and answers each with one line:

    fork NAME   -> new | exists | error TEXT     a shim that listens in NAME/sock
    clear NAME  -> done | alive                  remove what a dead shim left

Guarantees: a sandbox's directory exists exactly when its socket listens (it is made aside and renamed into place), so two
callers that want the same name get one sandbox; a shim shares nothing with this process but memory pages; end of input
ends the server and no shim. What dead shims left is cleared away where somebody wants their place; the rest is the reaper's
(``sandbox.reaper``).
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator

from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.init import SHELL
from t1actors.sandbox.shim.limits import Controllers, find_controllers
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.machine import Kind
from t1actors.sandbox.shim.rootfs import read_host_files
from t1actors.sandbox.shim.sandbox import Namespaces, Prepared
from t1actors.sandbox.shim.seccomp import build_program
from t1actors.sandbox.shim.server import run_shim
from t1actors.sandbox.shim.users import users_of_this_process
from t1actors.sandbox.unpack import remove_tree

_BACKLOG = 128


def namespaces(root_directory: str, prefix: str, limits: str, why_one_uid: str = "") -> Kind:
    """Prepared for this host. ``prefix`` begins the names of this root's control groups and of no other's; ``limits`` is
    "cgroups", or "rlimits" to do without; ``why_one_uid`` is for an ordinary user who has no more (``outer``).

    Raises:
        StepFailed: what this host lacks.
    """
    if not os.access(SHELL, os.X_OK):
        raise StepFailed(f"finding {SHELL}", errno.ENOENT)
    controllers = find_controllers(f"{prefix}.probe-{os.getpid()}") if limits == "cgroups" else Controllers(None, None)
    return Namespaces(
        Prepared(
            root_directory=root_directory,
            group_prefix=prefix,
            host_files=read_host_files(),
            controllers=controllers,
            filter_program=build_program(deny_memfd=controllers.memory is None),
            users=users_of_this_process(why_one_uid),
        )
    )


def main(root_directory: str, prepare: Callable[[], Kind]) -> None:
    """Serve until the end of the input. What ``prepare`` could not do is the first and last answer."""
    try:
        _serve(root_directory, prepare)
    except StepFailed as failure:
        os.write(1, f"refused \t{failure.step}\t{failure.reason}\n".encode())
        sys.exit(1)


def _serve(root_directory: str, prepare: Callable[[], Kind]) -> None:
    linux.set_name("t1-forkserver")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides when this ends: by closing the input
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended shims leave no zombies
    os.umask(0o022)  # what is laid out and written inside depends on the task, never on who started the run
    os.chdir(root_directory)
    kind = prepare()
    gc.collect()
    gc.disable()  # nothing here makes cycles, and a collection would touch every page shared with the shims
    gc.freeze()
    for line in _lines():
        order, _, name = line.partition(" ")
        answer = _fork(kind, name) if order == "fork" else _clear(kind, name)
        os.write(1, f"{answer}\n".encode())


def _lines() -> Iterator[str]:
    buffer = b""
    while data := os.read(0, 65_536):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield line.decode()


def _fork(kind: Kind, name: str) -> str:
    for _ in range(2):
        listener = _listen(name)
        if listener is None:
            if _clear(kind, name) == "alive":
                return "exists"
            continue
        try:
            pid = os.fork()
        except OSError as error:
            listener.close()
            _clear(kind, name)
            return f"error forking a shim failed: {error.strerror}"
        if pid == 0:
            run_shim(kind.machine(name), kind.root_directory, name, listener.fileno())
        listener.close()
        return "new"
    return f"error the directory {name} can't be cleared away"


def _listen(name: str) -> socket.socket | None:
    """A listening socket at NAME/sock; None if the directory is there already."""
    aside = f".{name}-{os.getpid()}"
    os.mkdir(aside, 0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{aside}/sock")
    listener.listen(_BACKLOG)
    try:
        os.rename(aside, name)
    except OSError as error:
        listener.close()
        _remove(aside)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return None
        raise
    return listener


def _clear(kind: Kind, name: str) -> str:
    """Remove what is left of a sandbox whose shim is dead. The kernel ended its processes and mounts with it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(f"{name}/sock")
        except OSError:
            pass
        else:
            return "alive"
    kind.clear(name)
    _remove(name)
    return "done"


def _remove(name: str) -> None:
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        remove_tree(name, here)
    finally:
        os.close(here)


if __name__ == "__main__":
    main(sys.argv[1], lambda: namespaces(*sys.argv[1:]))
