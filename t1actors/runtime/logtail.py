"""The last words of an actor, for people: the end of its log file with the JSON of the runtime's own lines unfolded."""

from __future__ import annotations

from pathlib import Path

import msgspec

TAIL_BYTES = 16_384


class _Line(msgspec.Struct):
    event: str
    level: str = ""
    error: str = ""
    exception: str = ""


_decoder = msgspec.json.Decoder(_Line)


def log_tail(path: Path, *, lines: int = 12) -> tuple[str, ...]:
    """At most ``lines`` last lines of the log at ``path``; none when there is no log."""
    if not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    unfolded = [part for line in text.splitlines() for part in _unfold(line)]
    return tuple(unfolded[-lines:])


def _unfold(line: str) -> list[str]:
    try:
        entry = _decoder.decode(line)
    except msgspec.DecodeError:
        return [line]
    return [f"{entry.level}: {entry.event}", *entry.exception.splitlines()]
