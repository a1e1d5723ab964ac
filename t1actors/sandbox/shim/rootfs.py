"""The sandbox's root file system: an allow-list of the host over nothing, or an image's layers, or both.

    own    tmpfs of the shim: the skeleton (``lower``), /dev with the shell's control files, read-only layers
    disk   tmpfs of the trial, as large as its disk limit: the overlay's ``upper`` and ``work``
    merged overlay of skeleton, image and upper; /proc, /dev and the read-only layers mount on it, and with the host as base
           /usr and /etc/alternatives

Guarantees: the host's / is never a lower layer; nothing of the host is reachable but /usr, /etc/alternatives and, with a
network, /etc/ssl/certs (read-only, as a user that owns nothing there), null, zero, full, random, urandom and tty of /dev
where an ordinary user may make no devices, and the files of /etc named here, which are copies; no mount follows a link that
a layer planted. All of it lives in the shim's private mount namespace and is gone with the shim.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from t1actors.sandbox.archive import OPAQUE_ATTRIBUTE, OPAQUE_ATTRIBUTE_OF_USERS, OPEN_DIRECTORY
from t1actors.sandbox.errors import SandboxRefused
from t1actors.sandbox.shim.layers import check_image, hold, make_places, make_workdir, mount_layers
from t1actors.sandbox.shim.linux import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
    StepFailed,
    bind_read_only,
    make_current_directory_the_root,
    mount,
    open_beneath,
    set_file_system_ids,
    unmount,
)
from t1actors.sandbox.shim.users import Range
from t1actors.sandbox.unpack import remove_tree, unpack
from t1actors.sandbox.wire import LayerBytes

CONTROL = "/dev/.t1"
"""Where the shell finds its commands (``shell``)."""

_MERGED_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_CERTIFICATES = "etc/ssl/certs"
"""Of public authorities; most are links into /usr."""
_COPIED_FILES = ("ld.so.cache", "ld.so.conf", "services", "protocols", "nsswitch.conf", "debian_version")
NETWORK_FILES = {  # above an image, as they are another in every sandbox
    "hostname": "sandbox\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "resolv.conf": "",
}
_WRITTEN_FILES = NETWORK_FILES | {
    "passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
        "bin:x:2:2:bin:/bin:/usr/sbin/nologin\n"
        "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": (
        "root:x:0:\ndaemon:x:1:\nbin:x:2:\nadm:x:4:\ntty:x:5:\ndisk:x:6:\nwww-data:x:33:\nstaff:x:50:\nusers:x:100:\n"
        "nogroup:x:65534:\n"
    ),
    "shells": "/bin/sh\n/bin/bash\n",
    # `su` from root and nothing else: there are no passwords here.
    "pam.d/other": (
        "auth sufficient pam_rootok.so\nauth required pam_deny.so\n"
        "account required pam_permit.so\npassword required pam_deny.so\nsession required pam_permit.so\n"
    ),
}
_IMAGE_DIRECTORIES = ("dev", "etc", "proc", "root", "run", "sys", "var")
"""Below the image: only where it has none."""
_DIRECTORIES = (
    "app", "boot", "dev", "etc", "etc/alternatives", "etc/pam.d", "home", "logs", "logs/agent", "logs/verifier", "media",
    "mnt", "opt", "proc", "run", "run/lock", "srv", "sys", "usr", "var", "var/cache", "var/lib", "var/log", "var/spool",
)  # fmt: skip
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_TERMINALS = 5
"""The group tty."""
_OWN_BASE_MB = 16  # skeleton, control files and one command at a time


class HostFiles(NamedTuple):
    """What is copied from the host, read once."""

    etc: dict[str, bytes]
    links: dict[str, str]
    """Top-level links such as bin -> usr/bin."""
    directories: tuple[str, ...]
    """Top-level directories of a host without merged /usr."""


def read_host_files() -> HostFiles:
    """What of the host's /etc and / every root gets."""
    etc = {name: text.encode() for name, text in _WRITTEN_FILES.items()}
    for name in _COPIED_FILES:
        try:
            with open(f"/etc/{name}", "rb") as file:
                etc[name] = file.read()
        except OSError:  # hosts differ in which of these they have
            continue
    links = {name: os.readlink(f"/{name}") for name in _MERGED_USR if os.path.islink(f"/{name}")}
    directories = tuple(name for name in _MERGED_USR if name not in links and os.path.isdir(f"/{name}"))
    return HostFiles(etc, links, directories)


class Base(NamedTuple):
    """What lies below the trial's own layer: directories of an image's layers, the uppermost first, and the host's
    allow-list or not."""

    host: bool = True
    layers: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    """Paths in the image store to lock for the sandbox's life."""


class Root(NamedTuple):
    """Where the parts of a root are, or will be. Paths hold in the shim's mount namespace."""

    own: str
    base: Base
    read_only: tuple[tuple[str, str], ...]
    """What is mounted read-only: where, and from where."""
    binds: tuple[str, ...]

    @property
    def merged(self) -> str:
        return f"{self.own}/merged"

    @property
    def upper(self) -> str:
        return f"{self.own}/disk/upper"

    @property
    def disk(self) -> str:
        return f"{self.own}/disk"

    @property
    def control(self) -> str:
        return f"{self.own}{CONTROL}"


def plan_root(own: str, host: HostFiles, layers: Sequence[LayerBytes], base: Base, *, network: bool) -> Root:
    """What ``make_root`` will make at the empty directory ``own``; with a ``network`` the host's certificates, too."""
    read_only: list[tuple[str, str]] = []
    for number, layer in enumerate(layers):
        if layer.read_only:
            source = f"merged/{layer.at.strip('/')}" if layer.over_base else f"layers/{number}"
            read_only.append((layer.at, f"{own}/{source}"))
    certificates = (_CERTIFICATES,) if network and os.path.isdir(f"/{_CERTIFICATES}") else ()
    binds = ("usr", *host.directories, *certificates) if base.host else ()
    return Root(own, base, tuple(read_only), binds)


def make_root(
    root: Root,
    host: HostFiles,
    layers: Sequence[LayerBytes],
    *,
    uid: int,
    workdir: str,
    disk_mb: int,
    resolv_conf: str,
    privileged: bool = True,
) -> None:
    """Lay everything out; ``resolv_conf`` is that file of /etc. The caller is in a mount namespace of its own; not
    ``privileged``: as root of an ordinary user's.

    Raises:
        StepFailed: the step that the host refused.
        ArchiveError: a layer's bytes.
        SandboxRefused: the layers are too large, or the image lacks what a sandbox needs.
    """
    own, base = root.own, root.base
    hold(base.holds)
    mount("none", "/", flags=MS_REC | MS_SLAVE)  # what the host unmounts goes here too; nothing goes the other way
    fixed_bytes = sum(len(layer.archive) for layer in layers if layer.read_only and not layer.over_base)
    # Many small files take more room than their archive: whoever asks for read-only layers allows it as disk.
    own_mb = _OWN_BASE_MB + (disk_mb + 2 * (fixed_bytes >> 20) if fixed_bytes else 0)
    mount("t1-own", own, "tmpfs", flags=MS_NOSUID, options=f"size={own_mb}m,mode=755")
    os.chdir(own)
    previous_umask = os.umask(0)
    for name in ("disk", "dev", "lower", "layers", "merged"):
        os.mkdir(name, 0o755)
    inodes = max(2048, disk_mb * 256)
    mount(
        "t1-disk", "disk", "tmpfs", flags=MS_NOSUID | MS_NODEV, options=f"size={disk_mb}m,nr_inodes={inodes},mode=755"
    )
    os.mkdir("disk/upper", 0o755)
    os.mkdir("disk/work", 0o755)
    _make_devices(privileged=privileged)
    if not privileged:
        need_attributes_of_users("disk/work")
    mark = opaque_attribute(privileged=privileged)
    for place in ("lower", "disk/upper", "layers"):
        os.chown(place, uid, uid)
    lowers = "lower"
    if base.layers:
        os.mkdir("base", 0o755)
        lowers = ":".join([*mount_layers(base.layers, "base", uid), "lower"])
    try:
        set_file_system_ids(uid, uid)  # from here on files belong to the sandbox's root
        if base.host:
            _make_skeleton(host, resolv_conf)
            if _CERTIFICATES in root.binds:
                os.close(make_directory("lower", _CERTIFICATES))
        else:
            _make_image_skeleton(resolv_conf)
            lowers = f"layers/names:{lowers}"
        set_file_system_ids(0, 0)
        on_image = bool(base.layers) or not base.host
        over = [layer.at for layer in layers if layer.over_base or not layer.read_only]
        if on_image and over:
            _mount_overlay(lowers, privileged=privileged)
            make_places("merged", over, uid)
            unmount("merged")
        set_file_system_ids(uid, uid)
        for number, layer in enumerate(layers):
            if layer.read_only and not layer.over_base:
                lay_out(layer.archive, make_directory("layers", str(number)))
                make_directory("disk/upper", layer.at)
            elif layer.archive:
                lay_out(layer.archive, make_directory("disk/upper", layer.at), overlay=mark)
        if not on_image:
            make_directory("disk/upper", workdir)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise SandboxRefused(f"the layers do not fit the disk of {disk_mb} MB; raise limits.disk_mb") from error
        raise StepFailed("laying out the root", error.errno or 0) from error
    finally:
        set_file_system_ids(0, 0)
    os.umask(previous_umask)
    _mount_overlay(lowers, privileged=privileged)
    if on_image:
        if not base.host:
            check_image("merged")
        make_workdir("merged", workdir, uid)
    os.chdir("/")


def opaque_attribute(*, privileged: bool) -> str:
    """By which the upper layer marks opaque directories; only root of the host can have it out of everybody's reach, the
    other one the overlay itself hides."""
    return OPAQUE_ATTRIBUTE if privileged else OPAQUE_ATTRIBUTE_OF_USERS


def need_attributes_of_users(place: str) -> None:
    """An overlay that an ordinary user mounts keeps its marks in them. Raises ``StepFailed``."""
    try:
        os.setxattr(place, "user.t1actors", b"")
    except OSError as error:
        raise StepFailed("keeping attributes of users in a tmpfs (needs Linux 6.6)", error.errno or 0) from error


def _mount_overlay(lowers: str, *, privileged: bool) -> None:
    # A directory that is renamed is copied, so that the upper layer says what it is without the ones below it.
    options = f"lowerdir={lowers},upperdir=disk/upper,workdir=disk/work"
    options += ",redirect_dir=off,metacopy=off" if privileged else ",userxattr"  # which implies both
    mount("t1-root", "merged", "overlay", flags=MS_NOSUID | MS_NODEV, options=options)


def _make_devices(*, privileged: bool) -> None:
    os.mkdir("dev/pts", 0o755)
    os.mkdir("dev/shm", 0o1777)
    os.mkdir(CONTROL.lstrip("/"), 0o755)
    if privileged:
        try:
            for name, (major, minor) in _DEVICES.items():
                os.mknod(f"dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except OSError as error:
            raise StepFailed("making device nodes", error.errno or 0) from error
    else:
        for name in _DEVICES:
            os.close(os.open(f"dev/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            mount(f"/dev/{name}", f"dev/{name}", flags=MS_BIND, named=f"/dev/{name}")
    links = (("pts/ptmx", "ptmx"), ("/proc/self/fd", "fd"), *((f"/proc/self/fd/{n}", s) for n, s in _STANDARD))
    for target, name in links:
        os.symlink(target, f"dev/{name}")


_STANDARD = ((0, "stdin"), (1, "stdout"), (2, "stderr"))


def _make_skeleton(host: HostFiles, resolv_conf: str) -> None:
    for name in (*_DIRECTORIES, *host.directories):
        os.mkdir(f"lower/{name}", 0o755)
    os.mkdir("lower/root", 0o700)
    os.mkdir("lower/tmp", 0o1777)
    os.mkdir("lower/var/tmp", 0o1777)
    for name, target in host.links.items():
        os.symlink(target, f"lower/{name}")
    os.symlink("../usr/lib/os-release", "lower/etc/os-release")
    for name, data in (host.etc | {"resolv.conf": resolv_conf.encode()}).items():
        _write_etc("lower", name, data)


def _write_etc(root: str, name: str, data: bytes) -> None:
    fd = os.open(f"{root}/etc/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, data)
    os.close(fd)


def _make_image_skeleton(resolv_conf: str) -> None:
    for name in _IMAGE_DIRECTORIES:
        os.mkdir(f"lower/{name}", 0o700 if name == "root" else 0o755)
    for name in ("tmp", "var/tmp"):
        os.mkdir(f"lower/{name}", 0o1777)
    for name in ("layers/names", "layers/names/etc"):
        os.mkdir(name, 0o755)
    for name, text in (NETWORK_FILES | {"resolv.conf": resolv_conf}).items():
        _write_etc("layers/names", name, text.encode())


def make_directory(root: str, path: str) -> int:
    """An open descriptor of the directory ``path`` under ``root``, made where missing. A link or file that an earlier
    layer left on the way is replaced."""
    current = os.open(root, OPEN_DIRECTORY)
    for name in filter(None, path.split("/")):
        try:
            below = os.open(name, OPEN_DIRECTORY, dir_fd=current)
        except OSError:  # not there, or not a directory
            remove_tree(name, current)
            os.mkdir(name, 0o755, dir_fd=current)
            below = os.open(name, OPEN_DIRECTORY, dir_fd=current)
        os.close(current)
        current = below
    return current


def lay_out(archive: bytes, directory_fd: int, *, overlay: str = "") -> None:
    """Unpack into the directory and close it."""
    try:
        unpack(archive, directory_fd, overlay=overlay)
    finally:
        os.close(directory_fd)


def enter_root(root: Root, *, ids: Range, shm_mb: int) -> None:
    """Mount what belongs on the merged root and make it /. Called by the first process of the new pid namespace, in a
    mount namespace of its own that already has the other namespaces' views."""
    merged = os.open(root.merged, OPEN_DIRECTORY)
    for name in root.binds:
        bind_read_only(f"/{name}", _place(merged, name), named=f"/{name}")
    if root.base.host and os.path.isdir("/etc/alternatives"):
        bind_read_only("/etc/alternatives", _place(merged, "etc/alternatives"), named="/etc/alternatives")
    for at, source in root.read_only:
        bind_read_only(source, _place(merged, at), named=at)
    mount("proc", _place(merged, "proc"), "proc", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC, named="/proc")
    mount(f"{root.own}/dev", _place(merged, "dev"), flags=MS_BIND | MS_REC, named="/dev")
    mount("t1-own", f"{root.merged}/dev", flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID, named="/dev (read-only)")
    uid, terminals = ids.first, ids.first + (_TERMINALS if ids.size > _TERMINALS else 0)
    options = f"newinstance,ptmxmode=0666,mode=620,gid={terminals}"
    mount("devpts", f"{root.merged}/dev/pts", "devpts", flags=MS_NOSUID | MS_NOEXEC, options=options)
    shm = f"size={shm_mb}m,nr_inodes=4096,mode=1777,uid={uid},gid={uid}"
    mount("t1-shm", f"{root.merged}/dev/shm", "tmpfs", flags=MS_NOSUID | MS_NODEV, options=shm)
    os.chdir(root.merged)
    make_current_directory_the_root()


def _place(merged_fd: int, path: str) -> int:
    """Where to mount, found without following a link. Left open on purpose: the caller closes all at once."""
    try:
        return open_beneath(merged_fd, path, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise StepFailed(
            f"finding /{path.strip('/')} in the root (a layer must not replace it)", error.errno or 0
        ) from error
