"""An image's layers in a sandbox's root: directories of the host, read-only, with their owners moved into its range.

On the host a layer's files belong to the image's own users, 0 to 65,535. A mount with mapped owners shows user n as the
sandbox's n-th, so root inside owns what root owns in the image and nothing is copied or changed.

Guarantees: a layer is held (a shared lock on its directory, for the shim's life) before it is mounted, so that whoever
clears the store away sees it in use; a layer that was removed in between is refused. Mounts are read-only, nosuid, nodev.
Needed: a kernel from 5.19 on, and a file system for the store that can map owners (ext4, xfs, btrfs, tmpfs).
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Sequence

from t1actors.sandbox.errors import SandboxRefused
from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.linux import StepFailed

_IDS = 65_536
_MOUNTED_ON = ("dev", "proc")
_SHELLS = ("usr/bin/bash", "bin/bash")
"""Where ``init`` looks for one too."""


def hold(paths: Sequence[str]) -> None:
    """Share a lock on each for the life of this process. Raises ``SandboxRefused`` for one that is gone."""
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # left open: it is the lock
            fcntl.flock(fd, fcntl.LOCK_SH)
            gone = not os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            gone = True
        if gone:
            raise SandboxRefused(f"{path}: this part of an image is not there any more; build or import it again")


def mount_layers(layers: Sequence[str], into: str, first_uid: int) -> list[str]:
    """Mount each of ``layers`` on a new directory of ``into``; the places, in that order. Raises ``StepFailed``."""
    namespace = _owners(first_uid)
    places: list[str] = []
    try:
        for number, layer in enumerate(layers):
            place = f"{into}/{number}"
            os.mkdir(place, 0o755)
            linux.mount_with_owners(layer, place, namespace)
            places.append(place)
    finally:
        os.close(namespace)
    return places


def _owners(first_uid: int) -> int:
    """A user namespace in which 0 is ``first_uid``, held by nothing but the descriptor."""
    made, make = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            linux.unshare(linux.CLONE_NEWUSER, "user namespace")
            os.write(make, b"U")
            signal.pause()
        finally:
            os._exit(70)
    os.close(make)
    try:
        if os.read(made, 1) != b"U":
            raise StepFailed("making a user namespace for an image's owners", errno.EPERM)
        for kind in ("uid_map", "gid_map"):
            linux.write_file(f"/proc/{pid}/{kind}", f"0 {first_uid} {_IDS}\n")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(made)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def check_image(merged: str) -> None:
    """Raises ``SandboxRefused``: the root at ``merged`` has no bash, or what is mounted has no place there."""
    root = os.open(merged, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in _MOUNTED_ON:
            try:
                os.close(linux.open_beneath(root, name, os.O_PATH | os.O_DIRECTORY))
            except OSError as error:
                raise SandboxRefused(f"the image's /{name} is no directory; a sandbox needs one") from error
        for shell in _SHELLS:
            try:
                os.close(linux.open_in_root(root, shell, os.O_PATH))
            except OSError:
                continue
            return
    finally:
        os.close(root)
    raise SandboxRefused("the image has no bash (/usr/bin/bash or /bin/bash); build one on it that has: RUN or COPY it")


def make_places(merged: str, places: Sequence[str], uid: int) -> None:
    """Have each of ``places`` be a directory of the overlay's upper layer, without a change to what the image says of it. New
    ones belong to ``uid``."""
    root = os.open(merged, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for place in places:
            fd = _directory(root, place, uid)
            os.fchmod(fd, os.fstat(fd).st_mode & 0o7777)  # the same mode: a write all the same, so it is copied up
            os.close(fd)
    finally:
        os.close(root)


def make_workdir(merged: str, workdir: str, uid: int) -> None:
    """Have a directory at ``workdir``, which may lie behind links."""
    root = os.open(merged, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(linux.open_in_root(root, workdir, os.O_PATH | os.O_DIRECTORY))
    except OSError:
        os.close(_directory(root, workdir, uid))
    finally:
        os.close(root)


def _directory(root: int, path: str, uid: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.dup(root)
    try:
        for name in filter(None, path.split("/")):
            try:
                below = os.open(name, flags, dir_fd=current)
            except FileNotFoundError:
                os.mkdir(name, 0o755, dir_fd=current)
                os.chown(name, uid, uid, dir_fd=current)
                below = os.open(name, flags, dir_fd=current)
            except NotADirectoryError as error:
                raise SandboxRefused(f"{path}: {name} is no directory in the image; choose another place") from error
            os.close(current)
            current = below
    except BaseException:
        os.close(current)
        raise
    return current
