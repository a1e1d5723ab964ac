"""A container's tree before anything of the trial runs in it: what is laid into its layers, and what its mounts become.

Layers are written where they lie, by the host's root. Guarantees: no link that an image or a layer planted is followed; a
directory that has to be made over one of the image looks like it, owner and mode; what every sandbox has is below what
the trial writes, so it is in no sealed archive.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Sequence

from t1actors.sandbox.archive import OPEN_DIRECTORY
from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.rootfs import NETWORK_FILES, lay_out, make_directory

_INIT_LAYER = "-init/diff"
"""Docker's own lower layer of a container, with the empty files that it mounts on."""
_DIRECTORIES = ("app", "logs/agent", "logs/verifier")
"""What every sandbox has, whatever its image."""


def complete_init_layer(lowers: Sequence[str], resolv_conf: str) -> None:
    """Fill in what every sandbox has where the image does not; ``resolv_conf`` is that file of /etc."""
    if not lowers[0].endswith(_INIT_LAYER):
        return
    for name, text in (NETWORK_FILES | {"resolv.conf": resolv_conf}).items():
        with contextlib.suppress(FileNotFoundError):
            linux.write_file(f"{lowers[0]}/etc/{name}", text)
    for path in _DIRECTORIES:
        top = path.partition("/")[0]
        links = any(_status(lower, top, os.O_PATH) and not _directory(lower, top) for lower in lowers)
        if not links and not any(_directory(lower, path) for lower in lowers):
            os.close(make_like_below(lowers[0], lowers[1:], path))


def make_like_below(root: str, lowers: Sequence[str], path: str) -> int:
    """An open descriptor of the directory ``path`` in the layer ``root``; what has to be made for it looks as in the first
    of ``lowers`` that has it, else it belongs to the layer's owner."""
    layer = os.open(root, OPEN_DIRECTORY)
    try:
        owner = os.fstat(layer)
        names = [name for name in path.split("/") if name]
        prefixes = ["/".join(names[: length + 1]) for length in range(len(names))]
        missing = [prefix for prefix in prefixes if _directory(root, prefix) is None]
        directory = make_directory(root, path)
        for prefix in missing:
            like = next((found for lower in lowers if (found := _directory(lower, prefix))), None)
            fd = linux.open_beneath(layer, prefix, os.O_RDONLY | os.O_DIRECTORY)
            os.fchown(fd, (like or owner).st_uid, (like or owner).st_gid)
            if like is not None:
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
            os.close(fd)
        return directory
    finally:
        os.close(layer)


@contextlib.contextmanager
def owned_as(root: str) -> Generator[None]:
    """What is made meanwhile belongs to the owner of ``root``: the container's root, which a daemon may have remapped."""
    owner = os.stat(root)
    linux.set_file_system_ids(owner.st_uid, owner.st_gid)
    try:
        yield
    finally:
        linux.set_file_system_ids(0, 0)


def finish_mounts(pid_fd: int, upper: str, fixed: Sequence[tuple[str, bytes | None]], workdir: str) -> None:
    """Inside the container's mount namespace, as host root, while nothing of the trial runs. ``fixed``: where a read-only
    layer goes, and its archive, or None for what is there already. ``workdir`` may lie behind links of the image."""
    owner = os.stat(upper)
    linux.enter(pid_fd, linux.CLONE_NEWNS, "the container's mount namespace")
    for name in NETWORK_FILES:
        with contextlib.suppress(StepFailed):  # a daemon that mounts nothing there
            linux.unmount(f"/etc/{name}")
    with owned_as("/"):
        os.makedirs(workdir, 0o755, exist_ok=True)
    locked = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID
    for at, archive in fixed:
        if _directory("/", at) is None:
            raise StepFailed(f"finding {at} in the root (a layer must not replace it)", errno.ENOENT)
        if archive is None:
            linux.mount(at, at, flags=linux.MS_BIND)
        else:
            linux.mount("t1-layer", at, "tmpfs", flags=linux.MS_NOSUID | linux.MS_NODEV, options="mode=755")
            os.chown(at, owner.st_uid, owner.st_gid)
            with owned_as(at):
                lay_out(archive, os.open(at, OPEN_DIRECTORY))
        linux.mount("none", at, flags=locked | linux.MS_NODEV, named=f"{at} (read-only)")
    linux.mount("none", "/dev", flags=locked, named="/dev (read-only)")


def _directory(root: str, path: str) -> os.stat_result | None:
    return _status(root, path, os.O_PATH | os.O_DIRECTORY)


def _status(root: str, path: str, flags: int) -> os.stat_result | None:
    """Of what is at ``path`` under ``root``, through no link; None if nothing can be opened so. A link at the end counts
    when ``flags`` open one."""
    top = os.open(root, OPEN_DIRECTORY)
    try:
        fd = linux.open_beneath(top, path, flags | os.O_NOFOLLOW)
    except OSError:
        return None
    finally:
        os.close(top)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)
