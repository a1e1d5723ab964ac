"""What a task says of how it is graded: the keys ``grading``, ``graded_paths``, ``subject`` and ``tests_readable`` of
``[metadata.t1]``.

Guarantees: graded paths are plain directories, apart from each other, and hold nothing that the grader's own root needs.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from t1actors.tasks.table import Table  # not at run time: a task holds these rules, and tables raise its errors

Mode = Literal["fresh-root", "same-sandbox"]
Subject = Literal["user", "grader"]
MODES: tuple[str, ...] = get_args(Mode)
SUBJECTS: tuple[str, ...] = get_args(Subject)
KEYS = ("grading", "graded_paths", "subject", "tests_readable")
"""Of ``[metadata.t1]``."""
_CLOSED = ("bin", "dev", "lib", "lib32", "lib64", "libx32", "logs", "proc", "sbin", "sys", "tests", "usr")
_WHOLE = ("/", "/etc", "/etc/alternatives", "/opt", "/opt/t1", "/root", "/run", "/tmp", "/var")
"""Nothing but parts of these can be the agent's."""


@dataclass(frozen=True)
class GradingRules:
    """``mode``: in a fresh root, or in the agent's own sandbox. ``paths``: what of the agent's tree the grader sees;
    empty: the working directory. ``subject``: programs that tests start run as a user of their own, or as the grader's.
    ``tests_readable``: that user may read the tests."""

    mode: Mode = "fresh-root"
    paths: tuple[str, ...] = ()
    subject: Subject = "user"
    tests_readable: bool = False


def read_grading(table: Table) -> GradingRules:
    """The rules in ``[metadata.t1]``. Raises ``TaskError``."""
    mode, subject = table.string("grading") or "fresh-root", table.string("subject") or "user"
    if mode not in MODES:
        raise table.wrong("grading", mode, " or ".join(MODES))
    if subject not in SUBJECTS:
        raise table.wrong("subject", subject, " or ".join(SUBJECTS))
    paths = tuple(posixpath.normpath(path) for path in table.strings("graded_paths"))
    for path in paths:
        first = path.split("/")[1] if path.startswith("/") else ""
        if path in _WHOLE or not first or first in _CLOSED or ".." in path.split("/") or path.startswith("//"):
            raise table.wrong(
                "graded_paths", path, "an absolute directory that is the agent's alone, as /app or /etc/nginx"
            )
        if sum(f"{other}/".startswith(f"{path}/") for other in paths) > 1:
            raise table.wrong("graded_paths", list(paths), "directories of which none lies in another")
    return GradingRules(
        mode="same-sandbox" if mode == "same-sandbox" else "fresh-root",
        paths=paths,
        subject="grader" if subject == "grader" else "user",
        tests_readable=table.boolean("tests_readable") or False,
    )
