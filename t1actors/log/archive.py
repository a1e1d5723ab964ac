"""What an exported run directory says of itself (``t1 log export``)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from t1actors.log.errors import NoteDamaged

NOTE = "exported.json"


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """``digest`` is the run's (``t1 log check`` prints it), ``step`` the one whose blobs the archive holds; without a step it
    holds them all."""

    run: str
    digest: str
    events: int
    step: int | None = None


def excerpt_of(run: Path) -> int | None:
    """The step that the run directory was cut down to; None: to none. Raises ``NoteDamaged``."""
    try:
        return msgspec.json.decode((run / NOTE).read_bytes(), type=Exported).step
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NoteDamaged(run / NOTE, error, advice="it says what the archive holds: unpack that again") from error
