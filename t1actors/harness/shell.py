"""The shell harness: a turn is one command of the sandbox's persistent shell, and ``submit`` ends the episode.

Ids and texts are ``harness.native``'s; here are the two halves of it that a run is made of. A turn's ``command`` is what it
says, and nothing has to be remembered from one turn to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from t1actors.events import EpisodeEnd
from t1actors.harness.interface import Reading
from t1actors.harness.native import NativeHarness, end_before_execution, observation_text
from t1actors.harness.summary import REQUEST, so_far
from t1actors.models.tokenizer import Tokenizer
from t1actors.sandbox.interface import RunRequest, RunResult


class ShellHarness:
    """The sampler's half."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._native = NativeHarness(tokenizer)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._native.stop_ids

    def opening(self, instruction: str, screen: str) -> tuple[int, ...]:
        return self._native.opening(instruction)

    def observation(self, text: str, *, last_sampled: int) -> tuple[int, ...]:
        return self._native.observation(text)

    def reading(self, sampled_ids: Sequence[int], finish: Literal["stop", "length"], *, previous: str) -> Reading:
        command = self._native.command_of(sampled_ids)
        return Reading(command.text, command.canonical, end_before_execution(command, finish))

    def summary_request(self, *, last_sampled: int | None) -> tuple[int, ...]:
        return self._native.observation(REQUEST)

    def summary(self, sampled_ids: Sequence[int], finish: Literal["stop", "length"]) -> Reading:
        said = self._native.command_of(sampled_ids)
        return Reading(said.text, said.canonical, "compaction_failed" if finish == "length" else None)

    def reopening(self, instruction: str, summary: str, observation: str) -> tuple[int, ...]:
        return self._native.opening(f"{instruction.strip()}\n\n{so_far(summary, observation)}")

    def end_after(self, command: str) -> EpisodeEnd | None:
        return None


class ShellHands:
    """The pool's half. A command may take ``limit_s``, and ``observation_chars`` of what it prints are shown."""

    def __init__(self, *, limit_s: float, observation_chars: int) -> None:
        self._limit_s = limit_s
        self._observation_chars = observation_chars

    @property
    def limit_s(self) -> float:
        return self._limit_s

    def start(self, key: str) -> RunRequest | None:
        return None

    def screen(self, started: RunResult) -> str:
        return ""

    def request(self, key: str, command: str) -> RunRequest | None:
        return RunRequest(key=key, command=command, limit_s=self._limit_s)

    def observation(self, command: str, result: RunResult | None) -> str:
        assert result is not None
        return observation_text(result.text, result.exit_code, self._observation_chars)
