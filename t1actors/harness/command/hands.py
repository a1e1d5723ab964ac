"""The pool's half of the command harness: a program's command, run in its trial's sandbox, and the answer that it gets.

Guarantees: ``CommandRequested.command`` is JSON that says all that there is to know, and the answer is JSON that is a
function of what the command did: no times are in it, so that a sandbox that was made again shows the same.
"""

from __future__ import annotations

import msgspec

from t1actors.sandbox.interface import RunRequest, RunResult

OUT_OF_MEMORY = "the sandbox ran out of memory: the episode is over"


class AskedCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program asks for. ``limit_s``: the longest that it may take; None is the run's
    ``rollout.command_deadline_s``, which no command passes."""

    command: str
    limit_s: float | None = None

    def text(self) -> str:
        """As the log has it."""
        return _encode(self).decode()


class ShownResult(msgspec.Struct, frozen=True, kw_only=True):
    """What it is answered. ``exit_code`` is 124 after the time limit. ``truncated_bytes`` of the output are lost.
    ``shell_restarted``: variables and the directory are those of a new shell. ``limit_hit``: which of the sandbox's limits
    bit."""

    output: str
    exit_code: int
    timed_out: bool
    truncated_bytes: int
    shell_restarted: bool
    limit_hit: str


_encode = msgspec.json.Encoder().encode
_read_asked = msgspec.json.Decoder(AskedCommand)


class CommandHands:
    """See the module. A command may take ``limit_s``."""

    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s

    @property
    def limit_s(self) -> float:
        return self._limit_s

    def start(self, key: str) -> RunRequest | None:
        return None

    def screen(self, started: RunResult) -> str:
        return ""

    def request(self, key: str, command: str) -> RunRequest | None:
        asked = _read_asked.decode(command)
        limit_s = self._limit_s if asked.limit_s is None else min(asked.limit_s, self._limit_s)
        return RunRequest(key=key, command=asked.command, limit_s=limit_s)

    def observation(self, command: str, result: RunResult | None) -> str:
        assert result is not None
        shown = ShownResult(
            output=result.text,
            exit_code=result.exit_code,
            timed_out=result.timed_out,
            truncated_bytes=result.truncated_bytes,
            shell_restarted=result.shell_restarted,
            limit_hit=result.limit_hit,
        )
        return _encode(shown).decode()
