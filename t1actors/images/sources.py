"""Images from files: a root file system's directory, a ``docker save`` tar, an OCI layout as a directory or a tar.

Guarantees: every layer and configuration has the digest that names it, or the import is refused by name; archives are read
as they are, nothing of them is written but layers that ``images.layer`` laid out; the image is there only when all of it is.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol, TypeVar

import msgspec

from t1actors.images.compression import plain
from t1actors.images.errors import ImageRefused
from t1actors.images.image import Config, Image, RootFs, check_digest, decode_image, digest_of, this_architecture
from t1actors.images.layer import Measured
from t1actors.images.store import ImageStore
from t1actors.sandbox.layer_tar import LayerWriter, walk_tree

T = TypeVar("T")
Progress = Callable[[int, int, str], None]
"""Called with the layers done, how many there are, and what is being done."""


def no_progress(_done: int, _total: int, _what: str) -> None:
    """For whoever does not want to know."""


MAX_DOCUMENT_BYTES = 16 << 20
_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)


class Platform(msgspec.Struct, frozen=True):
    """Which machine a manifest is for."""

    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True):
    """A part of an image, by digest."""

    digest: str
    mediaType: str = ""
    size: int = 0
    platform: Platform | None = None
    annotations: dict[str, str] | None = None


class Manifest(msgspec.Struct, frozen=True):
    """An image manifest, or an index of several."""

    mediaType: str = ""
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()


class _SavedImage(msgspec.Struct, frozen=True):
    Config: str
    Layers: tuple[str, ...]
    RepoTags: tuple[str, ...] | None = None


class Files(Protocol):
    """Where the files of an image are: a directory, or an open tar."""

    where: str

    def has(self, name: str) -> bool:
        """Whether a regular file of that name is there."""
        ...

    def open(self, name: str) -> IO[bytes]:
        """Raises ``ImageRefused``: there is no such regular file."""
        ...


def import_source(store: ImageStore, source: Path, *, tag: str = "", progress: Progress | None = None) -> str:
    """Import whatever ``source`` is; the image's digest. ``tag`` chooses among several images of one archive.

    Raises ``ImageRefused``, ``OSError``.
    """
    note = progress or no_progress
    if source.is_dir():
        if (source / "oci-layout").is_file():
            return import_oci(store, _Folder(source), tag=tag, progress=note)
        return import_rootfs(store, source, progress=note)
    if not source.is_file():
        raise ImageRefused(f"{source}: not there; give a root file system, a docker save tar or an OCI layout")
    with _open_tar(source) as files:
        if files.has("manifest.json"):
            return import_docker_save(store, files, tag=tag, progress=note)
        if files.has("oci-layout"):
            return import_oci(store, files, tag=tag, progress=note)
    raise ImageRefused(
        f"{source}: neither a docker save tar (no manifest.json) nor an OCI layout (no oci-layout); unpack the tar of a root "
        "file system and give the directory"
    )


def import_rootfs(store: ImageStore, directory: Path, *, progress: Progress) -> str:
    """The tree at ``directory`` as an image of one layer; owners and modes as they are there."""
    progress(0, 1, "packing")
    with store.adding() as place:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with (place / "layer.tar").open("xb") as out:
                writer = LayerWriter(out, max_bytes=store.max_layer_bytes)
                for entry in walk_tree(fd, enter=lambda names: names != (b"dev",)):
                    _check_entry(directory, entry.names, entry.status)
                    status = entry.status
                    writer.add(
                        entry,
                        os.fsdecode(b"/".join(entry.names)),
                        uid=status.st_uid,
                        gid=status.st_gid,
                        mode=stat.S_IMODE(status.st_mode),
                        mtime_s=max(0, int(status.st_mtime)),
                    )
                writer.close()
        finally:
            os.close(fd)
        progress(0, 1, "laying out")
        with (place / "layer.tar").open("rb") as stream:
            layer = store.add_layer(stream, where=str(directory))
    image = Image(architecture=this_architecture(), config=Config(), rootfs=RootFs(diff_ids=(layer,)))
    progress(1, 1, "")
    return store.add_image(image, where=str(directory))


def _check_entry(directory: Path, names: tuple[bytes, ...], status: os.stat_result) -> None:
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        path = os.fsdecode(b"/".join(names))
        raise ImageRefused(f"{directory}: entry {path!r} is a device; a sandbox has none but those of its own /dev")


def import_docker_save(store: ImageStore, files: Files, *, tag: str, progress: Progress) -> str:
    """What ``docker save`` wrote."""
    where = files.where
    entries = _decode(_read(files, "manifest.json"), tuple[_SavedImage, ...], f"{where}: manifest.json")
    chosen = [e for e in entries if not tag or tag in (e.RepoTags or ())]
    if len(chosen) != 1:
        tags = ", ".join(name for e in entries for name in e.RepoTags or ()) or "no names"
        raise ImageRefused(f"{where}: holds {len(entries)} images ({tags}); choose one with --tag")
    [saved] = chosen
    config = _read(files, saved.Config)
    stated = saved.Config.removesuffix(".json").rpartition("/")[2]
    if digest_of(config) != f"sha256:{stated}":
        raise ImageRefused(f"{where}: {saved.Config} has the digest {digest_of(config)}; it was changed or damaged")
    image = decode_image(config, f"{where}: {saved.Config}")
    if len(image.layers) != len(saved.Layers):
        raise ImageRefused(f"{where}: {len(saved.Layers)} layers, and {len(image.layers)} in its configuration")
    for number, (name, diff_id) in enumerate(zip(saved.Layers, image.layers, strict=True)):
        progress(number, len(image.layers), f"layer {number + 1}")
        if not store.has_layer(diff_id):
            with files.open(name) as stream, plain(stream, f"{where}: {name}") as tar:
                store.add_layer(tar, where=f"{where}: {name}", expect=diff_id)
    progress(len(image.layers), len(image.layers), "")
    return store.add_image(config, where=where)


def import_oci(store: ImageStore, files: Files, *, tag: str, progress: Progress) -> str:
    """An OCI image layout."""
    index = _decode(_read(files, "index.json"), Manifest, f"{files.where}: index.json")
    found = [
        m for m in index.manifests if not tag or (m.annotations or {}).get("org.opencontainers.image.ref.name") == tag
    ]
    if not found or (len(found) > 1 and len({m.digest for m in found}) > 1 and not any(m.platform for m in found)):
        names = ", ".join(
            (m.annotations or {}).get("org.opencontainers.image.ref.name", "unnamed") for m in index.manifests
        )
        raise ImageRefused(f"{files.where}: holds the images {names or 'none'}; choose one with --tag")
    manifest = choose_manifest(tuple(found), files.where, lambda digest: _blob(files, digest))
    return import_manifest(
        store,
        manifest,
        where=files.where,
        document=lambda digest: _blob(files, digest),
        blob=lambda descriptor: files.open(_blob_name(descriptor.digest, files.where)),
        progress=progress,
    )


def choose_manifest(found: tuple[Descriptor, ...], where: str, document: Callable[[str], bytes]) -> Manifest:
    """Follow indexes down to the manifest for this machine. Raises ``ImageRefused``."""
    for _ in range(8):
        own = [
            m
            for m in found
            if m.platform and (m.platform.os, m.platform.architecture) == ("linux", this_architecture())
        ]
        plain_ones = [m for m in found if m.platform is None]
        chosen = (own or plain_ones)[:1]
        if not chosen:
            platforms = ", ".join(sorted({f"{m.platform.os}/{m.platform.architecture}" for m in found if m.platform}))
            raise ImageRefused(f"{where}: no image for linux/{this_architecture()}; there are {platforms or 'none'}")
        manifest = decode_manifest(document(chosen[0].digest), f"{where}: {chosen[0].digest}")
        if not manifest.manifests:
            return manifest
        found = manifest.manifests
    raise ImageRefused(f"{where}: indexes within indexes without an end")


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Raises ``ImageRefused``."""
    return _decode(data, Manifest, where)


def import_manifest(
    store: ImageStore,
    manifest: Manifest,
    *,
    where: str,
    document: Callable[[str], bytes],
    blob: Callable[[Descriptor], IO[bytes]],
    progress: Progress,
) -> str:
    """The image of ``manifest``: ``document`` gives small files by digest (checked here), ``blob`` opens layers."""
    if manifest.config is None or manifest.mediaType in _INDEX_TYPES:
        raise ImageRefused(f"{where}: not an image manifest: no configuration")
    config = checked(document(manifest.config.digest), manifest.config.digest, where)
    image = decode_image(config, f"{where}: {manifest.config.digest}")
    if len(image.layers) != len(manifest.layers):
        raise ImageRefused(f"{where}: {len(manifest.layers)} layers, and {len(image.layers)} in its configuration")
    for number, (descriptor, diff_id) in enumerate(zip(manifest.layers, image.layers, strict=True)):
        progress(number, len(image.layers), f"layer {number + 1}")
        if store.has_layer(diff_id):
            continue
        place = f"{where}: {descriptor.digest}"
        with blob(descriptor) as raw:
            packed = Measured(raw, store.max_layer_bytes, place)
            with plain(packed, place) as tar:
                store.add_layer(tar, where=place, expect=diff_id)
            packed.drain()
            if packed.digest != descriptor.digest:
                raise ImageRefused(f"{place}: its bytes have the digest {packed.digest}; it was changed or damaged")
    progress(len(image.layers), len(image.layers), "")
    return store.add_image(config, where=where)


def checked(data: bytes, digest: str, where: str) -> bytes:
    """The same. Raises ``ImageRefused`` where it has another digest."""
    if digest_of(data) != digest:
        raise ImageRefused(f"{where}: {digest} has bytes with the digest {digest_of(data)}; it was changed or damaged")
    return data


# --- where files are --------------------------------------------------------------------------------------------------


class _Folder:
    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        path = self._path / _plain_name(name, self.where)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ImageRefused(f"{self.where}: {name} cannot be read: {error.strerror}") from error
        return open(fd, "rb")


class _Tar:
    def __init__(self, tar: tarfile.TarFile, where: str) -> None:
        self.where = where
        self._tar = tar
        self._members = {member.name.removeprefix("./"): member for member in tar if member.isreg() or member.issym()}

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        if member is not None and member.issym():  # older versions of docker save link equal layers to each other
            target = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
            member = self._members.get(target)
        file = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if file is None:
            raise ImageRefused(f"{self.where}: {name} is not in it; save the image again")
        return file


@contextmanager
def _open_tar(path: Path) -> Generator[_Tar]:
    try:
        with tarfile.open(path, "r:*") as tar:
            yield _Tar(tar, str(path))
    except tarfile.TarError as error:
        raise ImageRefused(f"{path}: not a tar: {error}") from error


def _plain_name(name: str, where: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise ImageRefused(f"{where}: names the file {name!r}, which lies elsewhere")
    return name


def _blob_name(digest: str, where: str) -> str:
    return f"blobs/sha256/{check_digest(digest, where).removeprefix('sha256:')}"


def _blob(files: Files, digest: str) -> bytes:
    return checked(_read(files, _blob_name(digest, files.where)), digest, files.where)


def _read(files: Files, name: str) -> bytes:
    with files.open(name) as file:
        data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ImageRefused(f"{files.where}: {name} has more than {MAX_DOCUMENT_BYTES:,} bytes")
    return data


def _decode(data: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ImageRefused(f"{where}: {error}") from error
