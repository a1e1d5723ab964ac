"""What an endpoint may do, and how much of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``max_ids`` bounds a conversation, its answers included; at most what the engine takes. Raises ``ValueError``."""

    max_ids: int
    max_new_tokens: int = 4096
    """Of an answer whose call names no number, or a larger one."""
    temperature: float = 1.0
    """Of a session whose first call names none."""
    seed: int = 0
    """With session and prompt, what an answer is drawn from."""
    max_turns: int = 1000
    """Of a session."""
    max_sessions: int = 4096
    """Held at once; a closed one is held until it is forgotten."""
    max_calls: int = 256
    """At work at once."""
    max_body_bytes: int = 16 * 1024 * 1024
    busy_wait_s: float = 120.0
    """How long a call waits for another one that goes on with the same conversation."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature = {self.temperature}: above 0; greedy turns cannot be trained on")
        for field in fields(self):
            if field.name.startswith("max_") and getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} = {getattr(self, field.name)}: at least 1")
