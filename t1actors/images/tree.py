"""What a stack of layers shows as one tree, read from the layers' own directories.

Guarantees: names resolve as they would inside, links within the tree and never out of it; whiteouts and opaque directories
hide what lies below them. Nothing is mounted. With ``on_host`` the lowest part is what a sandbox sees of the host: /usr and
the links that lead into it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from t1actors.images.errors import ImageError
from t1actors.sandbox.archive import OPAQUE_ATTRIBUTE

_HOST = Path("/")
_SEEN_OF_HOST = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_MOST_LINKS = 40


@dataclass(frozen=True)
class Node:
    """A file, link or directory. ``sources`` are where it lies: for a directory, all that show through, the uppermost
    first."""

    names: tuple[str, ...]
    sources: tuple[Path, ...]
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def path(self) -> str:
        return "/" + "/".join(self.names)


class Tree:
    """``layers`` are directories, the uppermost first."""

    def __init__(self, layers: Sequence[Path], *, on_host: bool) -> None:
        sources = (*layers, _HOST) if on_host else tuple(layers)
        self._root = Node((), sources, os.stat("/"))

    def child(self, node: Node, name: str) -> Node | None:
        """What ``node``, a directory, has under ``name``."""
        found: list[Path] = []
        first: os.stat_result | None = None
        for source in node.sources:
            if source == _HOST and name not in _SEEN_OF_HOST:
                continue
            path = source / name
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                break
            if not stat.S_ISDIR(status.st_mode):
                if first is None:
                    return Node((*node.names, name), (path,), status)
                break
            first = first or status
            found.append(path)
            if _is_opaque(path):
                break
        return Node((*node.names, name), tuple(found), first) if first is not None else None

    def children(self, node: Node) -> Iterator[Node]:
        """Everything in the directory, by name."""
        names = {name for source in node.sources for name in os.listdir(source)}
        for name in sorted(names, key=os.fsencode):
            child = self.child(node, name)
            if child is not None:
                yield child

    def resolve(self, path: str) -> tuple[tuple[str, ...], Node | None]:
        """The real names of ``path``, links followed, and what is there; parts that are not there stay as they are. Raises
        ``ImageError``: links in a circle, or a file on the way."""
        pending = [name for name in reversed(path.split("/")) if name not in ("", ".")]
        nodes: list[Node] = [self._root]
        missing: list[str] = []
        links = 0
        while pending:
            name = pending.pop()
            if name == "..":
                if missing:
                    missing.pop()
                elif len(nodes) > 1:
                    nodes.pop()
                continue
            if missing:
                missing.append(name)
                continue
            if not nodes[-1].is_directory:
                raise ImageError(f"{path}: {nodes[-1].path} is no directory in the image")
            child = self.child(nodes[-1], name)
            if child is None:
                missing.append(name)
            elif stat.S_ISLNK(child.status.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise ImageError(f"{path}: links lead in a circle in the image")
                target = os.readlink(child.sources[0])
                if target.startswith("/"):
                    nodes = [self._root]
                pending += [part for part in reversed(target.split("/")) if part not in ("", ".")]
            else:
                nodes.append(child)
        if missing and not nodes[-1].is_directory:
            raise ImageError(f"{path}: {nodes[-1].path} is no directory in the image")
        return (*nodes[-1].names, *missing), None if missing else nodes[-1]

    def at(self, names: Sequence[str]) -> Node | None:
        """What is there under exactly these names; no link is followed."""
        node = self._root
        for name in names:
            child = self.child(node, name) if node.is_directory else None
            if child is None:
                return None
            node = child
        return node


def _is_opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, OPAQUE_ATTRIBUTE, follow_symlinks=False) == b"y"
    except OSError:  # no such attribute
        return False
