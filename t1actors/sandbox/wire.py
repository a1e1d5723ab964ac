"""What a backend and a shim say to each other: one order and its answer a connection, over the sandbox's Unix socket.

A message is a header (u32 length of the JSON, u64 length of the bytes that follow it), the JSON list
``[name, field, ...]`` of one of the tuples below, and raw bytes (layers, an archive, a file). Only the standard library,
for both ends use this. Who may connect is decided by the socket's directory, which only its owner can enter.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import Any, NamedTuple

HOST = "host"
"""The base of a sandbox that stands on no image: the allow-list from the host's /usr."""
NO_NETWORK, INTERNET = "none", "internet"
"""What a sandbox can have of a network."""
OWN_ADDRESSES = "host"
"""Among refused addresses: those that the host itself has."""
_HEADER = struct.Struct("<IQ")
_MAX_JSON_BYTES = 64 << 20
_MAX_DATA_BYTES = 1 << 34


class Create(NamedTuple):
    """The bytes are the layers' archives, one after the other. ``layers``: at, read_only, over_base, size. ``base`` is the
    spec's; ``base_layers``:
    directories of an image's layers, the uppermost first; ``base_holds``: what to lock. ``refused``: addresses that a network
    does not reach."""

    workdir: str
    environment: list[tuple[str, str]]
    memory_mb: int
    disk_mb: int
    processes: int
    output_bytes: int
    command_s: float
    lease_s: float
    layers: list[tuple[str, bool, bool, int]]
    base: str
    base_host: bool
    base_layers: list[str]
    base_holds: list[str]
    network: str
    refused: list[str]


class LayerBytes(NamedTuple):
    """A layer as it came over the wire."""

    at: str
    read_only: bool
    over_base: bool
    archive: bytes


def split_layers(order: Create, data: bytes) -> list[LayerBytes]:
    """Every layer of an order."""
    layers: list[LayerBytes] = []
    start = 0
    for at, read_only, over_base, size_bytes in order.layers:
        layers.append(LayerBytes(at, read_only, over_base, data[start : start + size_bytes]))
        start += size_bytes
    return layers


class Run(NamedTuple):
    """Run a command; the same key never runs twice."""

    key: str
    command: str
    limit_s: float


class ReadFile(NamedTuple):
    """Read a regular file from outside."""

    path: str
    max_bytes: int


class Seal(NamedTuple):
    """Kill everything inside and send the archive."""

    paths: list[str]


class Commit(NamedTuple):
    """Kill everything inside and write what was written as an image layer: a tar in a new file on the host."""

    file: str
    max_bytes: int


class Kill(NamedTuple):
    """Leave nothing."""


class Renew(NamedTuple):
    """Start the lease anew."""


class Made(NamedTuple):
    """Answers Create."""

    existed: bool
    base: str
    namespaces: list[str]
    uid_map: str
    limits: list[str]
    warnings: list[str]
    network: str
    phases: dict[str, float]


class Ran(NamedTuple):
    """Answers Run. ``chunks``: seconds since the start, text."""

    chunks: list[tuple[float, str]]
    exit_code: int
    seconds: float
    truncated_bytes: int
    timed_out: bool
    shell_restarted: bool
    limit_hit: list[str]


class Done(NamedTuple):
    """Answers the rest; the bytes carry the result. ``found`` is False for a file that can't be read."""

    found: bool = True


class Failed(NamedTuple):
    """``kind`` names the error class; the texts are its arguments."""

    kind: str
    texts: list[str]


Order = Create | Run | ReadFile | Seal | Commit | Kill | Renew
Answer = Made | Ran | Done | Failed
_KINDS = {kind.__name__: kind for kind in (Create, Run, ReadFile, Seal, Commit, Kill, Renew, Made, Ran, Done, Failed)}


class WireError(Exception):
    """The other end does not speak this protocol."""


def encode(message: Order | Answer, data: bytes = b"") -> bytes:
    """The message as bytes, ``data`` behind it."""
    text = json.dumps([type(message).__name__, *message]).encode()
    return _HEADER.pack(len(text), len(data)) + text + data


class Inbox:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        self._buffer += data

    def take(self) -> tuple[Order | Answer, bytes] | None:
        """The next whole message, or None. Raises ``WireError``."""
        if len(self._buffer) < _HEADER.size:
            return None
        text_bytes, data_bytes = _HEADER.unpack_from(self._buffer)
        if text_bytes > _MAX_JSON_BYTES or data_bytes > _MAX_DATA_BYTES:
            raise WireError(f"a message of {text_bytes:,} + {data_bytes:,} bytes")
        end = _HEADER.size + text_bytes + data_bytes
        if len(self._buffer) < end:
            return None
        text = bytes(self._buffer[_HEADER.size : _HEADER.size + text_bytes])
        data = bytes(self._buffer[_HEADER.size + text_bytes : end])
        del self._buffer[:end]
        try:
            name, *fields = json.loads(text)
            kind: Any = _KINDS[name]
            return kind(*fields), data
        except (ValueError, KeyError, TypeError) as error:
            raise WireError(f"not a message: {text[:80]!r}") from error


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
MAX_NAME_BYTES = 80
"""The address of a Unix socket holds 107 bytes, and the name is a part of it."""


def group_prefix(root: str) -> str:
    """What the names of the control groups of sandboxes under the directory ``root`` begin with, and of no others."""
    return f"t1-{hashlib.sha256(os.fsencode(root)).hexdigest()[:10]}-"


def name_of(key: str) -> str:
    """A key as the name of its directory: reversible, plain, never hidden."""
    quoted = "".join(c if c in _PLAIN else "".join(f"%{byte:02X}" for byte in c.encode()) for c in key)
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def key_of(name: str) -> str:
    """The key whose directory has this name."""
    parts = name.split("%")
    data = parts[0].encode()
    for part in parts[1:]:
        data += bytes.fromhex(part[:2]) + part[2:].encode()
    return data.decode()
