"""What a renderer is: how one family of chat templates writes messages as ids, and reads an answer back.

Guarantees of every renderer:
- *append-only*: what ``extension`` gives stands after the ids of a turn that was sampled. What ``opening`` and the extensions
  give together is what one render of the whole conversation gives, id for id, wherever the model sampled the canonical
  ids. Nothing is taken out of the history (a template that drops earlier thinking is pinned to keep it);
- text never becomes a special id: only the renderer writes marks;
- ``answer`` never fails: whatever was sampled is an answer, and says what in it could not be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from t1actors.tito.render.messages import Message, Tool, ToolCall


class RenderError(Exception):
    """A conversation that the family's template has no form for, or a tokenizer that lacks its marks. Says what is
    missing."""


class BrokenCall(NamedTuple):
    """A tool call that could not be read: its text, and why."""

    text: str
    reason: str


class Answer(NamedTuple):
    """What a turn's sampled ids say. ``calls`` have ids that are a function of turn and place. ``foreign``: the family whose
    tool call format it was written in, where that is another one; such calls are not in ``calls``. ``canonical``: encoding
    the text gives the same ids back. ``closed``: it ends with an id that ends a turn."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    broken: tuple[BrokenCall, ...]
    foreign: str
    canonical: bool
    closed: bool


class Renderer(Protocol):
    """One family's renderer over one tokenizer."""

    @property
    def family(self) -> str:
        """``qwen3``, ``llama3``, ..."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Sampling one of these ends a turn. The first is the one that closes a turn which was cut off."""
        ...

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """One render of ``messages``, assistant messages among them or not, up to where the next answer begins.
        Raises ``RenderError``."""
        ...

    def extension(self, messages: Sequence[Message], *, last_sampled: int) -> tuple[int, ...]:
        """What follows a sampled turn that ended with the id ``last_sampled``: the id that closes it where it is not one of
        ``stop_ids``, the template's glue, ``messages`` (none of them an assistant's), and up to where the next answer begins.
        All of it is unsampled context. Raises ``RenderError``."""
        ...

    def answer(self, sampled_ids: Sequence[int], *, turn: str, tools: Sequence[Tool] = ()) -> Answer:
        """Read a sampled turn; ``turn`` names it, for the ids of its calls. Formats whose arguments are text, not JSON, make
        JSON of them by what ``tools`` declare."""
        ...
