"""Typed reading of a TOML table: a missing or wrong value names the file, the key and what was expected, and whatever
was not asked for can be listed afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from t1actors.tasks.task import TaskError

MOST = 10**12
"""No count, size or time is larger."""
_SHOWN_CHARS = 120


class Table:
    """One table of ``file``; ``prefix`` is where it is, for errors. Every getter raises ``TaskError``."""

    def __init__(self, file: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self._file = file
        self._values = values
        self._prefix = prefix
        self._seen: set[str] = set()
        self._unused: list[str] = []
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

    def string_map(self, key: str) -> tuple[tuple[str, str], ...]:
        """A table of strings, as pairs; empty when absent."""
        value = self._take(key)
        if value is None:
            return ()
        if isinstance(value, dict):
            items = cast("dict[str, object]", value)
            pairs = tuple((name, text) for name, text in items.items() if isinstance(text, str))
            if len(pairs) == len(items):
                return pairs
        raise self.wrong(key, cast("object", value), "a table of strings")

    def string_or_integer(self, key: str) -> str | int | None:
        """A string or a whole number; None when absent."""
        value = self._take(key)
        if value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.wrong(key, value, "a string or a whole number")

    def number(self, key: str) -> float | None:
        """A number above 0 and at most ``MOST``."""
        value = self._take(key)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MOST:
            return float(value)
        raise self.wrong(key, value, "a number above 0")

    def integer(self, key: str) -> int | None:
        """A whole number, not negative, at most ``MOST``."""
        value = self._take(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST):
            return value
        raise self.wrong(key, value, "a whole number, not negative")

    def boolean(self, key: str) -> bool | None:
        """True or false; None when absent."""
        value = self._take(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(key, value, "true or false")

    def has(self, key: str) -> bool:
        """Whether the key is there, whatever it holds."""
        return key in self._values

    def filled(self, key: str) -> bool:
        """Whether the key is there with a table or a list that is not empty; an empty one asks for nothing."""
        value = self._take(key)
        if value is None or isinstance(value, (dict, list)):
            return bool(cast("object", value))
        raise self.wrong(key, value, "a table, or a list of tables")

    def skip(self, *keys: str) -> None:
        """These keys are known, whatever they hold, and say nothing that a trial depends on."""
        self._seen.update(keys)

    def unused(self, *keys: str) -> None:
        """These keys are known, whatever they hold, and have no effect here."""
        self._seen.update(keys)
        self._unused += [self._prefix + key for key in keys if key in self._values]

    def without_effect(self) -> tuple[str, ...]:
        """Dotted keys that are there and ``unused``, here and in the tables taken from here."""
        return (*self._unused, *(key for table in self._tables for key in table.without_effect()))

    def unknown(self) -> tuple[str, ...]:
        """Dotted keys that nobody asked for, here and in the tables taken from here."""
        own = [self._prefix + key for key in self._values if key not in self._seen]
        return (*own, *(key for table in self._tables for key in table.unknown()))

    def wrong(self, key: str, value: object, expected: str) -> TaskError:
        """The error for a value that is not as expected."""
        return TaskError(f"{self._place(key)} = {_shown(value)}: expected {expected}")

    def refused(self, key: str, reason: str, value: object = None) -> TaskError:
        """The error for what is well said and not to be had here."""
        return TaskError(f"{self._place(key)}{'' if value is None else f' = {_shown(value)}'}: {reason}")

    def _place(self, key: str) -> str:
        return f"{self._file}: {self._prefix}{key}"

    def _take(self, key: str) -> object:
        self._seen.add(key)
        return self._values.get(key)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number of thousands of digits"
    except RecursionError:
        text = "something nested deep"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
