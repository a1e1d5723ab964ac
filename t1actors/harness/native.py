"""The native shell harness: how a model works a terminal when both sides speak token ids.

    <|user|> instruction <|end|> <|assistant|> command <|end|> <|tool|> observation <|end|> <|assistant|> ...

With another family's tokenizer the same turns are written as its models know them (``tito.render``): a system turn that says
what is wanted, instruction and observations as user turns. The tokenizer's special tokens decide which family it is.

Guarantees: ids are the source of truth. A call's context is only what the call adds, so history is never rendered again and
every boundary is STRICT; what the model sampled stays as sampled, canonical or not. Text from outside (instructions,
observations) can never become a special id, so a command's output cannot close the turn or speak for the user. One policy for
truncation: a turn that did not end with the end mark ends the episode, and nothing is run from it.

Pure: no clock, no files, no torch. When a trial ends is decided here, who acts on it is the sampler's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from t1actors.events import EpisodeEnd
from t1actors.models.tokenizer import Tokenizer
from t1actors.tito.render.choice import renderer_for
from t1actors.tito.render.messages import Message, Role

SUBMIT = "submit"
SYSTEM = (
    "You work in a Linux shell. Answer each message with one shell command and nothing else; you will be shown its output "
    f"and its exit status (rc). When the task is done, answer {SUBMIT}."
)
"""What a model of another family is told first; our own models were taught it."""


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
        self._renderer = renderer_for(tokenizer)
        own = self._renderer.family == "t1"
        self._system = () if own else (Message(role="system", content=SYSTEM),)
        self._shell: Role = "tool" if own else "user"
        self._end = self._renderer.stop_ids[0]
        self._end_think = None if own else tokenizer.token_to_id("</think>")

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Sampling one of these ends a turn; it is part of what was sampled."""
        return (self._end,)

    def opening(self, instruction: str) -> tuple[int, ...]:
        """The first call's context. White space around the instruction is not shown."""
        return self._renderer.opening((*self._system, Message(role="user", content=instruction.strip())))

    def observation(self, text: str) -> tuple[int, ...]:
        """The context of a call that follows a command."""
        return self._renderer.extension([Message(role=self._shell, content=text)], last_sampled=self._end)

    def command_of(self, sampled_ids: Sequence[int]) -> Command:
        """The command in a turn's sampled ids, with or without the closing mark: what comes after the model's thinking, where
        its format has such a thing. Special ids sampled inside a command show as their names: the shell will complain, and
        the text is not canonical."""
        body = list(sampled_ids)
        if body and body[-1] == self._end:
            body.pop()
        text = self._tokenizer.decode(body)
        canonical = self._tokenizer.encode(text) == body
        if (end_think := self._end_think) in body:
            answer = body[len(body) - body[::-1].index(end_think) :]
            text = self._tokenizer.decode(answer).lstrip("\n")
        return Command(text=text, submitted=text.strip() == SUBMIT, canonical=canonical)
