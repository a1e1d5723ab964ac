"""What a sealed archive says of a directory of the base below it: what was written there, as a read-only layer.

A sealed archive holds what was written on top of a base. Where the base is an image, the tree that somebody left at a
directory is the image's, less what was deleted, under what was written.
"""

from __future__ import annotations

import os

from t1actors.sandbox.archive import EMPTY, subtree, walk
from t1actors.sandbox.interface import Layer


def tree_left_at(archive: bytes, path: str) -> Layer:
    """The directory at ``path`` as the sandbox left it, read-only, for a sandbox on the same image. A directory that was
    deleted, or is none any more, is an empty one. Raises ``ArchiveError``."""
    names = [os.fsencode(name) for name in path.split("/") if name]
    hidden = False  # whether the base does not show through any more
    matched = 0
    for member in walk(archive):
        if member.kind == "E" and member.depth < matched:
            break  # past the deepest directory on the way that was written to
        on_the_way = member.depth == 0 if matched == 0 else member.name == names[matched - 1]
        if member.kind == "E" or member.depth != matched or not on_the_way:
            continue
        if member.kind not in "DO":
            return Layer(archive=EMPTY, at=path, read_only=True)
        hidden = hidden or member.kind == "O"
        matched += 1
        if matched > len(names):
            break
    if matched <= len(names):
        return Layer(archive=EMPTY if hidden else b"", at=path, read_only=True, over_base=not hidden)
    return Layer(archive=subtree(archive, path) or EMPTY, at=path, read_only=True, over_base=not hidden)
