"""Typed reading of a TOML table: a missing or wrong value names the file, the key and what was expected, and whatever
was not asked for can be listed afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from t1actors.tasks.task import TaskError


class Table:
    """One table of ``file``; ``prefix`` is where it is, for errors. Every getter raises ``TaskError``."""

    def __init__(self, file: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self._file = file
        self._values = values
        self._prefix = prefix
        self._seen: set[str] = set()
        self._tables: list[Table] = []

    def table(self, key: str) -> Table:
        """The sub-table ``key``; an absent one is empty."""
        value = self._take(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(key, value, "a table")
        inner = Table(self._file, cast("dict[str, object]", value), f"{self._prefix}{key}.")
        self._tables.append(inner)
        return inner

    def string(self, key: str) -> str | None:
        """A string; None when absent."""
        value = self._take(key)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(key, value, "a string")

    def strings(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self._take(key)
        if value is None:
            return ()
        if isinstance(value, list):
            items = cast("list[object]", value)
            texts = tuple(item for item in items if isinstance(item, str))
            if len(texts) == len(items):
                return texts
        raise self.wrong(key, cast("object", value), "a list of strings")

    def number(self, key: str) -> float | None:
        """A finite number above 0."""
        value = self._take(key)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf"):
            return float(value)
        raise self.wrong(key, value, "a number above 0")

    def integer(self, key: str) -> int | None:
        """A whole number, not negative."""
        value = self._take(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        raise self.wrong(key, value, "a whole number, not negative")

    def boolean(self, key: str) -> bool | None:
        """True or false; None when absent."""
        value = self._take(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(key, value, "true or false")

    def ignore(self, *keys: str) -> None:
        """These keys are known, whatever they hold, and not used here."""
        self._seen.update(keys)

    def unknown(self) -> tuple[str, ...]:
        """Dotted keys that nobody asked for, here and in the tables taken from here."""
        own = [self._prefix + key for key in self._values if key not in self._seen]
        return (*own, *(key for table in self._tables for key in table.unknown()))

    def wrong(self, key: str, value: object, expected: str) -> TaskError:
        """The error for a value that is not as expected."""
        return TaskError(f"{self._file}: {self._prefix}{key} = {value!r}: expected {expected}")

    def _take(self, key: str) -> object:
        self._seen.add(key)
        return self._values.get(key)
