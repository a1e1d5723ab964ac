"""What the agent left, without the links that would lead the grader into its own files.

Guarantees: no link of such a tree reaches the tests, the reports, the tools or a process of the grader, by itself or through
others: links of the tree are looked at one by one, and those below it (an image's, the host's /usr) do not lead there. A
target with a ``..`` behind another name goes too: where that leads depends on links on the way.

Left to others: links that are made while tests run (``inside.links``).
"""

from __future__ import annotations

import os
import posixpath

import msgspec

from t1actors.sandbox.archive import walk
from t1actors.sandbox.interface import Layer
from t1actors.verify.inside.places import LOGS, TESTS, TOOLS

CLOSED = (TESTS, LOGS, TOOLS, "/proc", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/.t1")
_SHOWN = 4


def severed(tree: Layer) -> tuple[Layer, tuple[str, ...]]:
    """The tree without those links, and where they were. Raises ``ArchiveError``."""
    if not tree.archive:
        return tree, ()
    kept: list[memoryview] = []
    gone: list[str] = []
    directory: list[str] = []
    view, kept_to = memoryview(tree.archive), 0
    for member in walk(tree.archive):
        if member.kind in "DO":
            directory.append(os.fsdecode(member.name) if member.depth else tree.at)
        elif member.kind == "E":
            directory.pop()
        elif member.kind == "L" and leads_into_closed("/".join(directory), os.fsdecode(member.target)):
            gone.append("/".join([*directory, os.fsdecode(member.name)]))
            kept.append(view[kept_to : member.start])
            kept_to = member.end
    if not gone:
        return tree, ()
    return msgspec.structs.replace(tree, archive=b"".join([*kept, view[kept_to:]])), tuple(gone)


def leads_into_closed(directory: str, target: str) -> bool:
    """Whether a link in ``directory`` (whose own path holds no link) may lead to ``CLOSED`` or to what holds it."""
    names = [name for name in target.split("/") if name not in ("", ".")]
    climbs = next((n for n, name in enumerate(names) if name != ".."), len(names))
    if ".." in names[climbs:]:
        return True
    start = "/" if target.startswith("/") else directory
    path = posixpath.normpath(posixpath.join("/", start.lstrip("/"), *names))
    return any(_below(path, place) or _below(place, path) for place in CLOSED)


def told(gone: tuple[str, ...]) -> str:
    """What a verdict says of them."""
    more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
    return f"links that may lead to the grader's own files were left out: {', '.join(gone[:_SHOWN])}{more}"


def _below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place.rstrip('/')}/")
