"""An actor's log file: one JSON object a line, written by structlog, and its last words for people.

What libraries say through the standard ``logging``, and warnings, land in the same file in the same form.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

TAIL_BYTES = 16_384


class Line(msgspec.Struct, omit_defaults=True, kw_only=True):
    """``exception`` is the whole traceback."""

    time: str = ""
    level: str = ""
    actor: str = ""
    pid: int = 0
    event: str
    exception: str = ""


_decoder = msgspec.json.Decoder(Line)


def log_to_stderr(actor: str, pid: int) -> None:
    """From now on all that this process logs or warns of goes to stderr as JSON lines."""

    def identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"actor": actor, "pid": pid, **event}

    shared = (
        identify,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)


def log_tail(path: Path, *, lines: int = 12) -> tuple[str, ...]:
    """At most ``lines`` last lines of the log at ``path``, JSON unfolded into words; none when there is no log."""
    if not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    unfolded = [part for line in text.splitlines() for part in _unfold(line)]
    return tuple(unfolded[-lines:])


def _unfold(text: str) -> list[str]:
    try:
        line = _decoder.decode(text)
    except msgspec.DecodeError:
        return [text]
    return [f"{line.level}: {line.event}", *line.exception.splitlines()]
