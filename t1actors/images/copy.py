"""COPY: files of a directory or of another stage as a layer.

Guarantees: the layer is a function of the files (names, modes, contents) and of what they are copied onto, so that its
digest can be its own cache; what is copied goes where it would go inside, behind the image's links, and directories that
are there keep their owners and modes; a file never takes a directory's place or the other way round.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from t1actors.images.errors import BuildFailed
from t1actors.images.ignore import matches
from t1actors.images.tree import Node, Tree
from t1actors.sandbox.layer_tar import Entry, LayerWriter

COPIED_AT_S = 315_619_200
"""2 January 1980: what a copied file's time is, since a checkout's says nothing; archives know no earlier ones."""
_DEFAULT_MODES: dict[tuple[str, ...], int] = {("tmp",): 0o1777, ("var", "tmp"): 0o1777, ("root",): 0o700}
"""Of directories that every sandbox has, and an image may lack."""


@dataclass(frozen=True)
class Origin:
    """Where files come from. ``hides`` says of a path in it that it may not be copied; ``keeps_owners`` for another stage's
    files, which also keep their times."""

    tree: Tree
    name: str
    hides: Callable[[str], bool] = lambda _: False
    keeps_owners: bool = False


@dataclass
class CopyWriter:
    """Writes one layer of copies onto ``onto``."""

    onto: Tree
    writer: LayerWriter
    made: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])

    def directory(self, path: str) -> bool:
        """Have a directory at ``path`` (WORKDIR); False if it is there already."""
        names, node = self.onto.resolve(path)
        if node is not None and node.is_directory:
            return False
        self._parents(names)
        self._new_directory(names)
        return True

    def document(self, data: bytes, target: str, name: str, *, into: bool, mode: int | None) -> None:
        """A file from memory (a heredoc)."""
        names = self._target(target, name, into=into)
        self._parents(names)
        self._refuse_directory(names)
        self.writer.file("/".join(names), data, mode=0o644 if mode is None else mode, mtime_s=COPIED_AT_S)

    def copy(self, origin: Origin, pattern: str, target: str, *, into: bool, mode: int | None) -> int:
        """Everything that ``pattern`` matches; how many it were. A directory's contents are copied, not itself."""
        found = 0
        for path in _matching(origin.tree, pattern):
            _, node = origin.tree.resolve(path)
            if node is None or (path and origin.hides(path)):
                continue
            found += 1
            if node.is_directory:
                self._tree(origin, node, target, mode)
            else:
                names = self._target(target, posixpath.basename(path), into=into)
                self._parents(names)
                self._add(origin, node, names, mode)
        return found

    # --- parts --------------------------------------------------------------------------------------------------------

    def _target(self, target: str, name: str, *, into: bool) -> tuple[str, ...]:
        names, node = self.onto.resolve(target)
        if into or (node is not None and node.is_directory):
            names, _ = self.onto.resolve(f"{target}/{name}")
        return names

    def _tree(self, origin: Origin, top: Node, target: str, mode: int | None) -> None:
        at, existing = self.onto.resolve(target)
        self._parents(at)
        if at and at not in self.made and existing is None:
            self._add(origin, top, at, mode)
        elif at:
            self._parents((*at, ""))
        depth = len(top.names)
        hidden: list[Node] = []
        for node in _walk(origin.tree, top):
            path = "/".join(node.names)
            names = (*at, *node.names[depth:])
            if origin.hides(path):
                if node.is_directory:  # something in it may be seen all the same
                    hidden.append(node)
                continue
            for above in hidden:
                if node.names[: len(above.names)] == above.names:
                    self._add(origin, above, (*at, *above.names[depth:]), mode)
            hidden = [above for above in hidden if node.names[: len(above.names)] != above.names]
            self._add(origin, node, names, mode)

    def _add(self, origin: Origin, node: Node, names: tuple[str, ...], mode: int | None) -> None:
        there = self.onto.at(names)
        if node.is_directory:
            if there is not None and not there.is_directory:
                raise BuildFailed(f"/{'/'.join(names)} is no directory in the image, and one would be copied there")
            if names in self.made or there is not None:
                self._parents((*names, ""))
                return
            self.made.add(names)
        else:
            self._refuse_directory(names)
        status = node.status
        owner = (status.st_uid, status.st_gid) if origin.keeps_owners else (0, 0)
        folder = os.open(node.sources[0].parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.writer.add(
                Entry((os.fsencode(node.sources[0].name),), status, folder),
                "/".join(names),
                uid=owner[0],
                gid=owner[1],
                mode=stat.S_IMODE(status.st_mode) if mode is None else mode,
                mtime_s=max(0, int(status.st_mtime)) if origin.keeps_owners else COPIED_AT_S,
            )
        finally:
            os.close(folder)

    def _refuse_directory(self, names: tuple[str, ...]) -> None:
        there = self.onto.at(names)
        if there is not None and there.is_directory:
            raise BuildFailed(f"/{'/'.join(names)} is a directory in the image, and a file would be copied there")

    def _parents(self, names: tuple[str, ...]) -> None:
        """The directories above ``names``: as they are, or new ones."""
        for length in range(1, len(names)):
            above = names[:length]
            if above in self.made:
                continue
            there = self.onto.at(above)
            if there is None:
                self._new_directory(above)
                continue
            self.made.add(above)
            status = there.status
            # Seen again in this layer with what it is already, as the uppermost layer decides.
            self.writer.directory(
                "/".join(above),
                uid=status.st_uid,
                gid=status.st_gid,
                mode=stat.S_IMODE(status.st_mode),
                mtime_s=max(0, int(status.st_mtime)),
            )

    def _new_directory(self, names: tuple[str, ...]) -> None:
        self.made.add(names)
        self.writer.directory("/".join(names), mode=_DEFAULT_MODES.get(names, 0o755), mtime_s=COPIED_AT_S)


def _matching(tree: Tree, pattern: str) -> list[str]:
    """Paths in the tree, without a leading slash, that the pattern may mean; whether they are there is not looked at where
    it has no wildcard."""
    paths = [""]
    for part in (part for part in pattern.split("/") if part not in ("", ".")):
        if not any(mark in part for mark in "*?["):
            paths = [f"{path}/{part}".lstrip("/") for path in paths]
            continue
        found: list[str] = []
        for path in paths:
            _, node = tree.resolve(path)
            if node is not None and node.is_directory:
                found += [
                    f"{path}/{c.names[-1]}".lstrip("/") for c in tree.children(node) if matches(part, c.names[-1])
                ]
        paths = found
    return paths


def _walk(tree: Tree, top: Node) -> Iterator[Node]:
    """Everything below ``top``, each directory before what it holds."""
    pending = list(reversed(list(tree.children(top))))
    while pending:
        node = pending.pop()
        yield node
        if node.is_directory:
            pending += reversed(list(tree.children(node)))
