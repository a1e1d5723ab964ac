"""Writes TOML documents for tests: the standard library only reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping


def toml_text(document: Mapping[str, object]) -> str:
    """``document`` as TOML, every value inline."""
    return "".join(f"{_string(key)} = {_value(value)}\n" for key, value in document.items())


def _string(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_string(str(key))} = {_value(item)}" for key, item in value.items()) + "}"
    return repr(value)
