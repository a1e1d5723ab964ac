"""How the log's events are chosen and shown: with a MessagePack reader that knows no schema, so that a run written by a newer
version can be read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import msgpack

from t1actors.events import EventMalformed, UnknownEvent, decode
from t1actors.log.merged import Entry
from t1actors.observe.attribution import Attribution
from t1actors.observe.quantities import one_line, size

SHOWN_CHARS = 60
SHOWN_ITEMS = 4


@dataclass
class Choice:
    """Which events to show, and how. Every event of the run must be given to ``shown``, in causal order: some say which step
    or trial later ones belong to. ``total`` events were given, ``found`` of them were asked for; ``kinds_seen`` are the kinds
    of those that are left when ``kinds`` is not asked for."""

    trial: str | None = None
    step: int | None = None
    actor: str | None = None
    kinds: Sequence[str] = ()
    as_json: bool = False
    total: int = 0
    found: int = 0
    kinds_seen: set[str] = field(default_factory=set[str])
    _attribution: Attribution = field(default_factory=Attribution)

    def shown(self, entry: Entry) -> str | None:
        """The event as a line; None: it was not asked for."""
        self.total += 1
        try:
            event = decode(entry.raw)
        except EventMalformed:
            event = UnknownEvent("", entry.raw)  # of another version: shown all the same
        self._attribution.note(event)
        if self.actor is not None and entry.frame.journal != self.actor:
            return None
        if self.trial is not None and self._attribution.trial(event) != self.trial:
            return None
        if self.step is not None and self._attribution.step(event) != self.step:
            return None
        plain = cast("dict[str, Any]", msgpack.unpackb(entry.raw))
        kind = str(plain.get("kind", ""))
        self.kinds_seen.add(kind)
        if self.kinds and kind.casefold() not in {k.casefold() for k in self.kinds}:
            return None
        self.found += 1
        return _json(entry, plain) if self.as_json else _line(entry, plain)

    def nothing(self, run: object) -> str:
        """Why nothing was shown."""
        asked = {"--trial": self.trial, "--step": self.step, "--actor": self.actor}
        given = [f"{name} {value}" for name, value in asked.items() if value is not None]
        if self.kinds:
            given.append(f"--kind {' or '.join(self.kinds)}")
        if not given:
            return f"{run}: it has no events yet"
        text = f"{run}: none of its {self.total:,} events is of {', '.join(given)}"
        if self.kinds_seen:
            return f"{text}; without --kind there are: {', '.join(sorted(self.kinds_seen))}"
        return f"{text}; a trial is named as in s3.t17, of step 3" if self.trial is not None else text


def _at(entry: Entry) -> datetime:
    return datetime.fromtimestamp(entry.frame.head.wall_ns / 1e9, UTC)


def _line(entry: Entry, plain: dict[str, Any]) -> str:
    fields = " ".join(f"{name}={_short(value)}" for name, value in plain.items() if name not in ("kind", "v"))
    at = _at(entry)
    kind = plain.get("kind", "?")
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {entry.frame.journal:<10} {entry.sequence:>7} {kind} {fields}"


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return f"<{size(len(value))}>"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        if {"digest", "size_bytes"} <= items.keys():
            return f"<{items['digest'][:12]} {size(items['size_bytes'])}>"
        if {"dtype", "shape", "data"} <= items.keys():
            return f"<{items['dtype']}{items['shape']}>"
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in list(items.items())[: SHOWN_ITEMS * 2]) + "}"
    if isinstance(value, list):
        listed = cast("list[Any]", value)
        shown = ", ".join(_short(v) for v in listed[:SHOWN_ITEMS])
        return f"[{shown}]" if len(listed) <= SHOWN_ITEMS else f"[{shown}, ... {len(listed)}]"
    if isinstance(value, str):
        text = one_line(value)
        if len(text) > SHOWN_CHARS:
            text = f"{text[:SHOWN_CHARS]}... {len(value)} chars"
        return f"'{text}'" if not text or " " in text else text
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _json(entry: Entry, plain: dict[str, Any]) -> str:
    head = {
        "at": _at(entry).isoformat(),
        "journal": entry.frame.journal,
        "sequence": entry.sequence,
        "epoch": entry.frame.epoch,
    }
    return json.dumps({**head, **plain}, ensure_ascii=False, default=_encoded)


def _encoded(value: Any) -> str:
    assert isinstance(value, bytes), f"MessagePack holds nothing else that JSON lacks: {type(value)}"
    return base64.b64encode(value).decode()
