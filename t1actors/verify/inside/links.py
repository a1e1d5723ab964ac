"""No link leads the grader into its own files: the tests and the reports are reached by their own names only.

The grader reads the tests and writes the reports; the subject can do neither. Links that the agent left, or that its
programs make where tests look, name files in the grader's stead: one to an expected answer in /tests would read as that
answer, one to the report would let a test write into it.

``guard()`` changes this process: opening, listing or entering a path that leads into ``CLOSED`` without being spelled so
is a ``LinkRefused``, which fails the test that does it. What Python's ``open`` opened is looked at once more by its
descriptor, so a link that changes meanwhile gains nothing.

Left to others: programs (the subject's own rights hold), and libraries that open files by themselves without telling
Python.
"""

from __future__ import annotations

import builtins
import filecmp
import io
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from t1actors.verify.inside.places import LOGS, TESTS

CLOSED = (TESTS, LOGS)
_EVENTS = frozenset(("open", "os.chdir", "os.listdir", "os.scandir", "sqlite3.connect"))


class LinkRefused(PermissionError):
    """A path that leads into the grader's files through a link."""


def guard() -> None:
    """From here on, in this process and its forks. Cannot be taken back."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and (path := _path_of(arguments[0])):
            _check(path, os.path.realpath(path))

    sys.addaudithook(watch)
    plain_open: Callable[..., Any] = io.open

    @wraps(plain_open)
    def open_and_look(file: Any, *rest: Any, **options: Any) -> Any:
        opened = plain_open(file, *rest, **options)
        if path := _path_of(file):
            try:
                _check(path, os.readlink(f"/proc/self/fd/{opened.fileno()}"))
            except LinkRefused:
                opened.close()
                raise
        return opened

    io.open = builtins.open = open_and_look
    compare = filecmp.cmp

    @wraps(compare)
    def compare_by_content(f1: Any, f2: Any, shallow: bool = True) -> bool:  # else it may do without opening them
        return compare(f1, f2, shallow=False)

    filecmp.cmp = compare_by_content


def _path_of(given: Any) -> str:
    """Empty: none, or none that can be opened."""
    if not isinstance(given, (str, bytes)):
        given = given.__fspath__() if hasattr(given, "__fspath__") else ""
    path = os.fsdecode(given)
    return "" if "\0" in path else path


def _check(path: str, leads_to: str) -> None:
    spelled = os.path.abspath(path)
    for place in CLOSED:
        if _below(leads_to, place) and not _below(spelled, place):
            raise LinkRefused(f"{path} is a link to {leads_to}: the grader's files are opened by their own names only")


def _below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")
