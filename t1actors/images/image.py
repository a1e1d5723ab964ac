"""What an image is: its configuration in the OCI's form, whose digest is the image's name, and references to images.

Guarantees: equal images have equal digests wherever they were made, since a configuration that is made here holds no time,
host or path; a configuration that came with an image is kept byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re

import msgspec

from t1actors.images.errors import ImageRefused

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an image's configuration that says how its processes run; names as the OCI has them."""

    Env: tuple[str, ...] | None = None
    WorkingDir: str = ""
    Cmd: tuple[str, ...] | None = None
    User: str = ""


class RootFs(msgspec.Struct, frozen=True, kw_only=True):
    """``diff_ids`` are the digests of the uncompressed layers, the lowest first."""

    type: str = "layers"
    diff_ids: tuple[str, ...] = ()


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image's configuration. ``t1_stands_in_for`` names the image whose place the host's own /usr takes; empty for a real
    image."""

    architecture: str
    os: str = "linux"
    config: Config = Config()
    rootfs: RootFs = RootFs()
    t1_stands_in_for: str = ""

    @property
    def on_host(self) -> bool:
        return bool(self.t1_stands_in_for)

    @property
    def layers(self) -> tuple[str, ...]:
        return self.rootfs.diff_ids

    @property
    def env(self) -> tuple[tuple[str, str], ...]:
        """Name and value; the last of a name counts."""
        pairs: dict[str, str] = {}
        for entry in self.config.Env or ():
            name, _, value = entry.partition("=")
            pairs[name] = value
        return tuple(pairs.items())

    @property
    def workdir(self) -> str:
        return self.config.WorkingDir or "/"


def encode_image(image: Image) -> bytes:
    """Canonical bytes: the image's digest is over them."""
    plain = msgspec.to_builtins(image)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def decode_image(data: bytes, where: str) -> Image:
    """Raises ``ImageRefused``: not an image's configuration, or one of another machine."""
    try:
        image = msgspec.json.decode(data, type=Image)
    except msgspec.DecodeError as error:
        raise ImageRefused(f"{where}: not an image's configuration: {error}") from error
    if image.os != "linux" or image.architecture != this_architecture():
        raise ImageRefused(
            f"{where}: an image for {image.os}/{image.architecture}, and this machine is linux/{this_architecture()}; "
            "take it for that platform"
        )
    for digest in image.layers:
        check_digest(digest, where)
    return image


def this_architecture() -> str:
    """As images name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def digest_of(data: bytes) -> str:
    """``sha256:...`` of ``data``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_digest(digest: str, where: str) -> str:
    """The same. Raises ``ImageRefused`` for what is no digest: it becomes a file's name."""
    if not DIGEST.fullmatch(digest):
        raise ImageRefused(f"{where}: {digest!r} is no sha256 digest")
    return digest


def short(digest: str) -> str:
    """The digest's first 12 digits, for people."""
    return digest.removeprefix("sha256:")[:12]


def normal_name(reference: str) -> str:
    """A reference as the store keeps it: ``debian``, ``docker.io/library/debian`` and ``debian:latest`` are one image."""
    name = reference
    for prefix in ("docker.io/", "index.docker.io/", "registry-1.docker.io/"):
        name = name.removeprefix(prefix)
    name = name.removeprefix("library/")
    last = name.rpartition("/")[2]
    return name if ":" in last or "@" in last else f"{name}:latest"
