"""Reading a model's answer of the Terminus protocol: one JSON object, found in whatever text it comes with.

    {"analysis": "...", "plan": "...", "commands": [{"keystrokes": "ls\\n", "duration": 0.5}], "task_complete": false}

Guarantees: every text is read, into an answer or into a complaint that says what is wrong with it; what can be understood
all the same (text around the object, missing closing brackets, a missing duration) is a warning. What is read is a function
of the text.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple, cast

DEFAULT_DURATION_S = 1.0
FIELDS = ("analysis", "plan", "commands")
"""All of them must be there, in this order."""
_CLOSING = {"{": "}", "[": "]"}
_YES = ("true", "yes", "1")
_SHOWN_CHARS = 80
_KEY = re.compile(
    r"(?:[CMS]-)+(?:.|[A-Za-z]+\d*)|Escape|Enter|B?Tab|Space|BSpace|Up|Down|Left|Right|Home|End|P(?:age|g)(?:Up|Down|Dn)|F\d\d?"
)
"""The name of a key, as tmux writes it."""
_decoder = json.JSONDecoder()


class Command(NamedTuple):
    """Keystrokes, verbatim, and how long to wait after them."""

    keystrokes: str
    duration_s: float


class Answer(NamedTuple):
    """``complaint``: why the answer can't be read; then it asks for nothing."""

    commands: tuple[Command, ...] = ()
    complete: bool = False
    warnings: tuple[str, ...] = ()
    complaint: str = ""


class _Unreadable(Exception):
    """The complaint."""


def read_answer(text: str) -> Answer:
    """What ``text``, an answer without the thinking before it, asks for."""
    warnings: list[str] = []
    try:
        found = _object_in(text, warnings)
        if missing := [name for name in FIELDS if name not in found]:
            raise _Unreadable(f"the JSON object has no {_listed(missing)}")
        _check_form(found, warnings)
        complete = _is_complete(found.get("task_complete"), warnings)
        try:
            commands = _commands(found["commands"], warnings)
        except _Unreadable as complaint:
            if not complete:
                raise
            commands = ()
            warnings.append(f"{complaint}, so nothing was typed")
    except _Unreadable as complaint:
        return Answer(complaint=str(complaint), warnings=tuple(warnings))
    return Answer(commands=commands, complete=complete, warnings=tuple(warnings))


# --- the object in the text -----------------------------------------------------------------------------------------


def _object_in(text: str, warnings: list[str]) -> dict[str, Any]:
    """The first JSON object with a field of ours; where there is none, what is nearest to one. Raises ``_Unreadable``."""
    first = start = text.find("{")
    if start < 0:
        raise _Unreadable("there is no JSON object in it")
    other: dict[str, Any] | None = None
    problem = ""
    while start >= 0:
        found, end, why = _decoded(text, start)
        if found is not None and any(name in found for name in FIELDS):
            _warn_of_text_around(text[:start], text[end:], warnings)
            return found
        if start == first:
            other, problem = found, why
        start = text.find("{", end)
    completed = _with_closing_brackets(text[first:])
    found, _, _ = _decoded(completed, 0)
    if found is not None and any(name in found for name in FIELDS):
        warnings.append("the JSON object was not closed; the missing brackets were added at its end")
        _warn_of_text_around(text[:first], "", warnings)
        return found
    if other is not None:
        return other
    raise _Unreadable(problem)


def _decoded(text: str, start: int) -> tuple[dict[str, Any] | None, int, str]:
    """The object that begins at ``start``, or None and why not; and where to look on."""
    try:
        found, end = _decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        shown = text[start : start + _SHOWN_CHARS]
        return (
            None,
            start + 1,
            f"its JSON is invalid at line {error.lineno}, column {error.colno} ({error.msg}): {shown!r}",
        )
    except (RecursionError, ValueError) as error:  # too deep, or a number of too many digits
        return None, len(text), f"its JSON can't be read: {error}"
    return cast("dict[str, Any]", found), end, ""


def _with_closing_brackets(text: str) -> str:
    """``text`` with the brackets that it lacks at its end; as it is where it ends inside a string."""
    open_brackets: list[str] = []
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in _CLOSING:
            open_brackets.append(_CLOSING[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
    return text if in_string else text + "".join(reversed(open_brackets))


def _warn_of_text_around(before: str, after: str, warnings: list[str]) -> None:
    if before.strip():
        warnings.append("there was text before the JSON object; it was ignored")
    if after.strip():
        warnings.append("there was text after the JSON object; it was ignored")


# --- what it says ---------------------------------------------------------------------------------------------------


def _check_form(found: dict[str, Any], warnings: list[str]) -> None:
    warnings += [f'"{name}" should be a text' for name in ("analysis", "plan") if not isinstance(found[name], str)]
    order = [name for name in found if name in FIELDS]
    if order != list(FIELDS):
        warnings.append(f"the fields came in the order {', '.join(order)}; write {', '.join(FIELDS)}")


def _is_complete(value: object, warnings: list[str]) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _YES
    if value is not None and not isinstance(value, bool):
        warnings.append('"task_complete" should be true or false')
        return False
    return value is True


def _commands(value: object, warnings: list[str]) -> tuple[Command, ...]:
    if not isinstance(value, list):
        raise _Unreadable('"commands" must be a list')
    items = cast("list[object]", value)
    commands: list[Command] = []
    for number, item in enumerate(items, 1):
        where = f"command {number}"
        if not isinstance(item, dict):
            raise _Unreadable(f"{where} must be an object")
        fields = cast("dict[str, object]", item)
        if not isinstance(keystrokes := fields.get("keystrokes"), str):
            raise _Unreadable(f'{where} must have "keystrokes", a text')
        if unknown := [name for name in fields if name not in ("keystrokes", "duration")]:
            warnings.append(f"{where} has {_listed(unknown)}, which mean nothing")
        if number < len(items) and keystrokes and not keystrokes.endswith("\n") and not _KEY.fullmatch(keystrokes):
            warnings.append(f"{where} does not end with a newline, so the next one was typed on the same line")
        commands.append(Command(keystrokes, _duration_s(fields, where, warnings)))
    return tuple(commands)


def _duration_s(fields: dict[str, object], where: str, warnings: list[str]) -> float:
    if "duration" not in fields:
        warnings.append(f"{where} has no duration; it was taken to be {DEFAULT_DURATION_S} s")
        return DEFAULT_DURATION_S
    value = fields["duration"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        warnings.append(f"the duration of {where} is no number of seconds; it was taken to be {DEFAULT_DURATION_S} s")
        return DEFAULT_DURATION_S
    return float(value)


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{name[:_SHOWN_CHARS]}"' for name in names)
