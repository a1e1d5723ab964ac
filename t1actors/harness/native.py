"""The native shell harness: how a model works a terminal when both sides speak token ids.

    <|user|> instruction <|end|> <|assistant|> command <|end|> <|tool|> observation <|end|> <|assistant|> ...

Guarantees: ids are the source of truth. A call's context is only what the call adds, so history is never rendered again and
every boundary is STRICT; what the model sampled stays as sampled, canonical or not. Text from outside (instructions,
observations) can never become a special id, so a command's output cannot close the turn or speak for the user. One policy for
truncation: a turn that did not end with <|end|> ends the episode, and nothing is run from it.

Pure: no clock, no files, no torch. When a trial ends is decided here, who acts on it is the sampler's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from t1actors.events import EpisodeEnd
from t1actors.models.tokenizer import Tokenizer

SUBMIT = "submit"


class Command(NamedTuple):
    """What a turn's sampled ids say. ``canonical``: encoding ``text`` gives the same ids back."""

    text: str
    submitted: bool
    canonical: bool


def observation_text(output: str, exit_code: int, limit_chars: int) -> str:
    """What the model is shown of a command: its output, cut to ``limit_chars``, and its exit status."""
    shown = output.strip("\n")
    if len(shown) > limit_chars:
        shown = shown[:limit_chars] + "..."
    return (shown + "\n" if shown else "") + f"rc {exit_code}"


def end_before_execution(command: Command, finish: Literal["stop", "length"]) -> EpisodeEnd | None:
    """Why the episode ends with this turn instead of running its command, if it does."""
    if finish == "length":
        return "turn_truncated"
    return "submitted" if command.submitted else None


def end_before_sampling(*, turns: int, turn_limit: int, ids: int, max_ids: int) -> EpisodeEnd | None:
    """Why the episode ends with ``turns`` turns done and a stream of ``ids`` (the next context included), if it does.

    ``max_ids`` bounds the whole stream; the caller also cuts a turn's ``max_new_tokens`` to what is left of it.
    """
    if turns >= turn_limit:
        return "turn_limit"
    return "token_limit" if ids >= max_ids else None


class NativeHarness:
    """Turns text into the ids a call adds, and sampled ids into a command."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Sampling one of these ends a turn; it is part of what was sampled."""
        return (self._special.end,)

    def opening(self, instruction: str) -> tuple[int, ...]:
        """The first call's context. White space around the instruction is not shown."""
        s = self._special
        return (s.user, *self._tokenizer.encode(instruction.strip()), s.end, s.assistant)

    def observation(self, text: str) -> tuple[int, ...]:
        """The context of a call that follows a command."""
        s = self._special
        return (s.tool, *self._tokenizer.encode(text), s.end, s.assistant)

    def command_of(self, sampled_ids: Sequence[int]) -> Command:
        """The command in a turn's sampled ids, with or without the closing <|end|>. Special ids sampled inside a command
        show as their names: the shell will complain, and the text is not canonical."""
        body = list(sampled_ids)
        if body and body[-1] == self._special.end:
            body.pop()
        text = self._tokenizer.decode(body)
        return Command(text=text, submitted=text.strip() == SUBMIT, canonical=self._tokenizer.encode(text) == body)
