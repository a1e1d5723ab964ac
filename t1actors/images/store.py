"""Images on disk, by digest.

    layers/HEX/fs       a layer, laid out for an overlay        layers/HEX/info.json   its size
    images/HEX.json     an image's configuration, whose digest is HEX
    names/NAME          what a name stands for                  steps/KEY              the layer that a build step gave
    staging/ID          being imported or built                 lock                   shared by whoever adds, taken to prune

Guarantees: what is under ``layers`` and ``images`` is whole and flushed (it is made in ``staging`` and renamed into place,
layers before the image that names them), so an import that was interrupted leaves nothing that is taken for an image;
two processes that add the same thing end with one; what a live sandbox holds a lock on is not pruned. Only the directory's
owner may enter it, for layers hold setuid files of strangers.

Used from threads: calls block on the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from t1actors.images.errors import ImageMissing, ImageRefused, StoreError
from t1actors.images.image import DIGEST, Image, decode_image, digest_of, encode_image, normal_name
from t1actors.images.layer import unpack_layer
from t1actors.sandbox.errors import SandboxRefused
from t1actors.sandbox.interface import BaseImage
from t1actors.sandbox.unpack import remove_tree
from t1actors.sandbox.wire import key_of, name_of

MAX_LAYER_BYTES = 20 << 30
MAX_LAYERS = 400
_FOLDERS = ("layers", "images", "names", "steps", "staging")


class LayerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a layer without looking into it."""

    size_bytes: int
    entries: int
    network: bool = False
    """A RUN with a network made it, so running it again may give another."""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for, and where that was imported from."""

    name: str
    digest: str
    source: str


@dataclass(frozen=True)
class Listed:
    """An image of the store."""

    digest: str
    image: Image
    names: tuple[Named, ...]
    size_bytes: int
    network: bool
    """Built with a network (``LayerInfo``)."""
    used_s: float
    """When it was last used, in seconds since 1970."""


class ImageStore:
    """See the module."""

    def __init__(
        self, root: Path, *, max_layer_bytes: int = MAX_LAYER_BYTES, clock_s: Callable[[], float] = time.time
    ) -> None:
        """``root`` is made when something is added. ``max_layer_bytes`` bounds what one layer may unpack to."""
        self.root = root.absolute()
        self.max_layer_bytes = max_layer_bytes
        self._clock_s = clock_s

    # --- adding -------------------------------------------------------------------------------------------------------

    @contextmanager
    def adding(self) -> Generator[Path]:
        """A directory of one's own to work in, gone afterwards; nothing is pruned meanwhile. Raises ``StoreError``."""
        self._make()
        with self._shared_lock():
            place = self.root / "staging" / f"{os.getpid()}-{uuid.uuid4().hex}"
            place.mkdir(mode=0o700)
            try:
                yield place
            finally:
                remove(place)

    def add_layer(self, stream: IO[bytes], *, where: str, expect: str = "", network: bool = False) -> str:
        """Lay out an uncompressed layer tar and keep it; its digest. ``expect`` is the digest it must have, ``network`` as in
        ``LayerInfo``.

        Raises ``ImageRefused``, ``StoreError``: there is no room, say.
        """
        with self.adding() as place:
            os.mkdir(place / "fs", 0o755)
            try:
                unpacked = unpack_layer(stream, str(place / "fs"), where=where, max_bytes=self.max_layer_bytes)
            except OSError as error:
                raise StoreError(f"{where}: cannot be kept in {self.root}: {error.strerror}") from error
            if expect and unpacked.digest != expect:
                raise ImageRefused(
                    f"{where}: its bytes have the digest {unpacked.digest}, and the image says {expect}; it was changed"
                )
            info = LayerInfo(size_bytes=unpacked.size_bytes, entries=unpacked.entries, network=network)
            (place / "info.json").write_bytes(msgspec.json.encode(info))
            os.sync()  # thousands of files: one flush of all is cheaper than one of each
            os.mkdir(place / "done")
            for name in ("fs", "info.json"):
                os.rename(place / name, place / "done" / name)
            with contextlib.suppress(FileExistsError):  # another was first with the same
                _rename_new(place / "done", self.layer_dir(unpacked.digest))
        return unpacked.digest

    def add_image(self, config: bytes | Image, *, where: str) -> str:
        """Keep an image whose layers are there; its digest. Raises ``ImageRefused``, ``StoreError``."""
        data = encode_image(config) if isinstance(config, Image) else config
        image = decode_image(data, where)
        digest = digest_of(data)
        if len(image.layers) > MAX_LAYERS:
            raise ImageRefused(
                f"{where}: {len(image.layers)} layers; an overlay takes {MAX_LAYERS}. Join RUNs and COPYs"
            )
        for layer in image.layers:
            if not self.has_layer(layer):
                raise StoreError(f"{where}: layer {layer} is not in {self.root}; add layers before their image")
        self._write(self.image_file(digest), data)
        return digest

    def set_name(self, name: str, digest: str, *, source: str) -> None:
        """Have ``name`` stand for the image. Raises ``ImageMissing``."""
        self.image(digest)
        named = Named(name=normal_name(name), digest=digest, source=source)
        self._write(self.root / "names" / name_of(named.name), msgspec.json.encode(named))

    def forget(self, name: str) -> bool:
        """Take the name off its image; False where there is none."""
        try:
            (self.root / "names" / name_of(normal_name(name))).unlink()
        except FileNotFoundError:
            return False
        return True

    def set_step(self, key: str, layer: str) -> None:
        """Remember which layer a build step gave."""
        self._write(self.root / "steps" / key, layer.encode())

    # --- finding ------------------------------------------------------------------------------------------------------

    def has_layer(self, digest: str) -> bool:
        """Whether it is there."""
        return DIGEST.fullmatch(digest) is not None and self.layer_dir(digest).is_dir()

    def step(self, key: str) -> str | None:
        """The layer that the build step gave before, where it is still there."""
        path = self.root / "steps" / key
        try:
            layer = path.read_text()
        except FileNotFoundError:
            return None
        if not self.has_layer(layer):
            return None
        _touch(path, self._clock_s())
        return layer

    def resolve(self, reference: str) -> str | None:
        """The digest of the image of that name, or with that digest; None where there is none."""
        if DIGEST.fullmatch(reference):
            return reference if self.image_file(reference).exists() else None
        try:
            named = msgspec.json.decode(
                (self.root / "names" / name_of(normal_name(reference))).read_bytes(), type=Named
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.root}: {reference!r} cannot be looked up: {error.strerror}") from error
        return named.digest

    def image(self, digest: str) -> Image:
        """Raises ``ImageMissing``, ``StoreError``: its file is damaged."""
        path = self.image_file(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise ImageMissing(f"image {digest} is not in {self.root}; `t1 image list` shows what is") from error
        if digest_of(data) != digest:
            raise StoreError(f"{path}: its bytes have another digest; remove the file and import the image again")
        return decode_image(data, str(path))

    def layer_path(self, digest: str) -> Path:
        """The directory that a layer was laid out in."""
        return self.layer_dir(digest) / "fs"

    def base_image(self, digest: str) -> BaseImage:
        """What a backend mounts (``sandbox.interface.BaseImages``); the image counts as used. Raises ``SandboxRefused``."""
        try:
            image = self.image(digest)
            network = any(self.layer_info(layer).network for layer in image.layers)
        except (ImageMissing, StoreError, OSError) as error:
            raise SandboxRefused(f"base {digest!r} is not known: {error}") from error
        _touch(self.image_file(digest), self._clock_s())
        layers = [str(self.layer_path(layer)) for layer in reversed(image.layers)]
        warnings = [f"the host's own /usr stands in for {image.t1_stands_in_for}"] if image.on_host else []
        if network:
            warnings.append("the image was built with a network: building it again may give another")
        if image.config.User not in ("", "0", "root"):
            warnings.append(f"the image is for user {image.config.User}; commands run as root")
        return BaseImage(
            digest=digest,
            layers=tuple(layers),
            on_host=image.on_host,
            env=image.env,
            holds=(str(self.image_file(digest)), *layers),
            warnings=tuple(warnings),
        )

    def list(self) -> list[Listed]:
        """Every image, by digest."""
        names = self.names()
        found: list[Listed] = []
        for path in sorted((self.root / "images").glob("*.json")):
            digest = f"sha256:{path.stem}"
            image = self.image(digest)
            layers = [self.layer_info(layer) for layer in image.layers]
            own = tuple(named for named in names if named.digest == digest)
            size_bytes, network = sum(layer.size_bytes for layer in layers), any(layer.network for layer in layers)
            found.append(Listed(digest, image, own, size_bytes, network, path.stat().st_mtime))
        return found

    def names(self) -> list[Named]:
        """Every name, in order."""
        folder = self.root / "names"
        if not folder.is_dir():
            return []
        files = sorted(folder.iterdir(), key=lambda path: key_of(path.name))
        return [msgspec.json.decode(path.read_bytes(), type=Named) for path in files]

    # --- parts --------------------------------------------------------------------------------------------------------

    def layer_dir(self, digest: str) -> Path:
        """Where everything of a layer is."""
        return self.root / "layers" / digest.removeprefix("sha256:")

    def image_file(self, digest: str) -> Path:
        """Where an image's configuration is."""
        return self.root / "images" / f"{digest.removeprefix('sha256:')}.json"

    def layer_info(self, layer: str) -> LayerInfo:
        """What is known of it. Raises ``OSError`` where it is not there."""
        return msgspec.json.decode((self.layer_dir(layer) / "info.json").read_bytes(), type=LayerInfo)

    def _make(self) -> None:
        if self.root.resolve().is_relative_to("/usr"):
            raise StoreError(f"{self.root} lies under /usr, which sandboxes may read; keep images elsewhere")
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in _FOLDERS:
            (self.root / folder).mkdir(mode=0o700, exist_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        with self.adding() as place:
            fresh = place / "file"
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _touch(fresh, self._clock_s())
            fresh.replace(path)

    @contextmanager
    def _shared_lock(self) -> Generator[None]:
        with open_lock(self.root) as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # others are at work
            else:
                self.sweep()
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield

    def sweep(self) -> None:
        """Remove what was being made by processes that are gone. The caller is alone with the store."""
        for place in (self.root / "staging").iterdir():
            remove(place)


@contextmanager
def open_lock(root: Path) -> Generator[int]:
    """The store's lock file; what is locked is free again when the block ends."""
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _rename_new(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if target.is_dir():
            raise FileExistsError(target) from error
        raise


def _touch(path: Path, now_s: float) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.utime(path, (now_s, now_s))


def remove(path: Path) -> None:
    """Delete a tree of any depth; fine if it is not there."""
    with contextlib.suppress(FileNotFoundError):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_tree(path.name, folder)
        finally:
            os.close(folder)
