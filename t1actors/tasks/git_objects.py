"""The objects of git repositories that lie in a tree, read from the files themselves.

Guarantees: every object is given, loose or packed, reachable or not, whatever refs say; no git runs, so a repository's own
configuration and hooks have no say; what is unpacked is bounded. SHA-1 and SHA-256 repositories, pack versions 2 and 3.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LARGEST_BYTES = 64 << 20
"""Of all objects of a tree together, unpacked."""

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _REFERENCE_DELTA = 6, 7
_LOOSE = re.compile(r"(?P<place>.*/|)objects/[0-9a-f]{2}/(?:[0-9a-f]{38}|[0-9a-f]{62})")
_PACK = re.compile(r"(?P<place>.*/|)objects/pack/pack-(?P<name>[0-9a-f]{40}|[0-9a-f]{64})\.pack")
_CHUNK_BYTES = 4096


class GitDataError(Exception):
    """Files that look like a repository's and are not, or are too much: says which."""


@dataclass(frozen=True)
class GitObject:
    """``place`` is the repository's directory (``app/.git``), ``kind`` is commit, tree, blob or tag."""

    place: str
    name: str
    kind: str
    data: bytes


def is_object_file(path: str) -> bool:
    """Whether ``path`` is where git keeps objects."""
    return _LOOSE.fullmatch(path) is not None or _PACK.fullmatch(path) is not None


def git_objects(files: Mapping[str, bytes]) -> Iterator[GitObject]:
    """The objects in ``files``, which are contents by path. Raises ``GitDataError``."""
    budget = _Budget()
    for path, data in sorted(files.items()):
        if loose := _LOOSE.fullmatch(path):
            kind, content = _loose(path, data, budget)
            yield _object(loose["place"], kind, content, _hash_of(path))
        elif pack := _PACK.fullmatch(path):
            width = len(pack["name"]) // 2
            for kind, content in _Pack(path, data, width, budget).objects():
                yield _object(pack["place"], kind, content, "sha1" if width == 20 else "sha256")


def _object(place: str, kind: str, data: bytes, algorithm: str) -> GitObject:
    return GitObject(place.rstrip("/"), _name(kind, data, algorithm), kind, data)


def _name(kind: str, data: bytes, algorithm: str) -> str:
    return hashlib.new(algorithm, f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def _hash_of(loose: str) -> str:
    return "sha1" if len(loose.rpartition("/")[2]) == 38 else "sha256"


class _Budget:
    def __init__(self) -> None:
        self._left = LARGEST_BYTES

    def spend(self, path: str, size_bytes: int) -> None:
        self._left -= size_bytes
        if self._left < 0:
            raise GitDataError(f"{path}: with it the repositories hold more than {LARGEST_BYTES >> 20} MiB unpacked")


def _inflate(path: str, data: memoryview, start: int, budget: _Budget) -> tuple[bytes, int]:
    """What is packed at ``start``, and where it ends."""
    stream, parts, place = zlib.decompressobj(), list[bytes](), start
    try:
        while not stream.eof:
            chunk = data[place : place + _CHUNK_BYTES]
            if not chunk:
                raise GitDataError(f"{path}: an object is cut off")
            parts.append(stream.decompress(chunk))
            budget.spend(path, len(parts[-1]))
            place += len(chunk)
    except zlib.error as error:
        raise GitDataError(f"{path}: {error}") from error
    return b"".join(parts), place - len(stream.unused_data)


def _loose(path: str, data: bytes, budget: _Budget) -> tuple[str, bytes]:
    content, _ = _inflate(path, memoryview(data), 0, budget)
    head, zero, body = content.partition(b"\0")
    kind = head.split(b" ")[0].decode("ascii", "replace")
    if not zero or kind not in _KINDS.values():
        raise GitDataError(f"{path}: no object")
    return kind, body


class _Pack:
    def __init__(self, path: str, data: bytes, width: int, budget: _Budget) -> None:
        self._path = path
        self._data = memoryview(data)
        self._width = width
        self._budget = budget

    def objects(self) -> Iterator[tuple[str, bytes]]:
        """(kind, data) of every object. A delta's base may come behind it."""
        by_place: dict[int, tuple[str, bytes]] = {}
        by_name: dict[bytes, tuple[str, bytes]] = {}
        waiting = list(self._entries())
        while waiting:
            left: list[tuple[int, int, int | bytes, bytes]] = []
            for place, kind, base, data in waiting:
                if kind in _KINDS:
                    found = (_KINDS[kind], data)
                elif (below := by_name.get(base) if isinstance(base, bytes) else by_place.get(base)) is not None:
                    found = (below[0], self._applied(below[1], data))
                else:
                    left.append((place, kind, base, data))
                    continue
                by_place[place] = found
                algorithm = "sha1" if self._width == 20 else "sha256"
                by_name[bytes.fromhex(_name(*found, algorithm))] = found
                yield found
            if len(left) == len(waiting):
                raise GitDataError(f"{self._path}: deltas without their bases")
            waiting = left

    def _entries(self) -> Iterator[tuple[int, int, int | bytes, bytes]]:
        """(where, type, base, unpacked) of every entry; the base is a place, or a name, of deltas only."""
        head = bytes(self._data[:12])
        if head[:4] != b"PACK" or head[4:8] not in (b"\0\0\0\2", b"\0\0\0\3") or len(head) < 12:
            raise GitDataError(f"{self._path}: no pack of version 2 or 3")
        place = 12
        for _ in range(int.from_bytes(head[8:], "big")):
            start = place
            kind, place = self._kind(place)
            base: int | bytes = 0
            if kind == _OFFSET_DELTA:
                back, place = self._back(place)
                base = start - back
            elif kind == _REFERENCE_DELTA:
                base, place = bytes(self._data[place : place + self._width]), place + self._width
            elif kind not in _KINDS:
                raise GitDataError(f"{self._path}: an entry of type {kind}")
            data, place = _inflate(self._path, self._data, place, self._budget)
            yield start, kind, base, data

    def _byte(self, place: int) -> int:
        if place >= len(self._data):
            raise GitDataError(f"{self._path}: cut off")
        return self._data[place]

    def _kind(self, place: int) -> tuple[int, int]:
        first = byte = self._byte(place)
        while byte & 0x80:
            place += 1
            byte = self._byte(place)
        return first >> 4 & 7, place + 1

    def _back(self, place: int) -> tuple[int, int]:
        byte = self._byte(place)
        value = byte & 0x7F
        while byte & 0x80:
            place += 1
            byte = self._byte(place)
            value = (value + 1 << 7) | (byte & 0x7F)
        return value, place + 1

    def _applied(self, base: bytes, delta: bytes) -> bytes:
        place = 0
        for _ in range(2):  # the sizes of base and result
            while place < len(delta) and delta[place] & 0x80:
                place += 1
            place += 1
        result = bytearray()
        try:
            while place < len(delta):
                code = delta[place]
                place += 1
                if not code & 0x80:
                    result += delta[place : place + code]
                    place += code
                    continue
                offset = size = 0
                for bit in range(7):
                    if code >> bit & 1:
                        if bit < 4:
                            offset |= delta[place] << 8 * bit
                        else:
                            size |= delta[place] << 8 * (bit - 4)
                        place += 1
                size = size or 0x10000
                self._budget.spend(self._path, size)
                result += base[offset : offset + size]
        except IndexError as error:
            raise GitDataError(f"{self._path}: a delta is cut off") from error
        return bytes(result)
