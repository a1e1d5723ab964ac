"""The Terminus harness: a model types keystrokes into a terminal, as JSON, and is shown what the terminal shows.

The two halves of ``harness.interface``, over ``prompt`` (what the model is told), ``answer`` (what it says), ``program``
(what that comes to) and ``terminal`` (how it is done). Any ``Renderer`` writes the messages as ids; all of them are the
user's, as models of this protocol know them.

Guarantees: an answer that can't be read ends no episode: the model is told what is wrong with it, nothing is typed, and only
``malformed_limit`` of them without a break end it. So does an answer that was cut off by its token ceiling. The task is
submitted by two answers, one after the other, that say it is complete; keystrokes of the second are typed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from t1actors.config import TerminusConfig
from t1actors.events import EpisodeEnd
from t1actors.harness.interface import Reading
from t1actors.harness.summary import REQUEST, so_far
from t1actors.harness.terminus import prompt, terminal
from t1actors.harness.terminus.answer import Answer, read_answer
from t1actors.harness.terminus.program import WaitLimits, program_from, program_of
from t1actors.sandbox.interface import RunRequest, RunResult
from t1actors.tito.render.interface import Renderer
from t1actors.tito.render.messages import Message

SLACK_S = 15.0
"""A turn's request may take this much longer than its waits: tmux starts, settles and is asked what there is to see."""


class TerminusHarness:
    """The sampler's half. ``turn_s``: the longest that a turn may wait in all."""

    def __init__(self, renderer: Renderer, config: TerminusConfig, *, turn_s: float) -> None:
        self._renderer = renderer
        self._config = config
        self._waits = WaitLimits(one_s=min(config.duration_limit_s, turn_s), all_s=turn_s)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._renderer.stop_ids

    def opening(self, instruction: str, screen: str) -> tuple[int, ...]:
        return self._opening(instruction, prompt.current(screen))

    def observation(self, text: str, *, last_sampled: int) -> tuple[int, ...]:
        return self._renderer.extension([Message(role="user", content=text)], last_sampled=last_sampled)

    def reading(self, sampled_ids: Sequence[int], finish: Literal["stop", "length"], *, previous: str) -> Reading:
        said = self._renderer.answer(sampled_ids, turn="")
        answer = Answer(complaint=prompt.TRUNCATED) if finish == "length" else read_answer(said.content)
        program = program_of(answer, program_from(previous), self._waits)
        end: EpisodeEnd | None = None
        if program.submits and not program.keys and not program.complaint:
            end = "submitted"
        elif program.unread and program.unread == self._config.malformed_limit:
            end = "malformed_turns"
        return Reading(program.text(), said.canonical, end)

    def summary_request(self, *, last_sampled: int | None) -> tuple[int, ...]:
        last = -1 if last_sampled is None else last_sampled  # as after a turn that was cut off
        return self._renderer.extension([Message(role="user", content=REQUEST)], last_sampled=last)

    def summary(self, sampled_ids: Sequence[int], finish: Literal["stop", "length"]) -> Reading:
        said = self._renderer.answer(sampled_ids, turn="")
        return Reading(said.content, said.canonical, "compaction_failed" if finish == "length" else None)

    def reopening(self, instruction: str, summary: str, observation: str) -> tuple[int, ...]:
        return self._opening(instruction, so_far(summary, observation))

    def _opening(self, instruction: str, rest: str) -> tuple[int, ...]:
        config, wait_s = self._config, self._waits.one_s
        text = prompt.opening(instruction, rest, columns=config.columns, rows=config.rows, wait_s=wait_s)
        return self._renderer.opening([Message(role="user", content=text)])

    def end_after(self, command: str) -> EpisodeEnd | None:
        program = program_from(command)
        return "submitted" if program.submits and not program.complaint else None


class TerminusHands:
    """The pool's half."""

    def __init__(self, config: TerminusConfig, *, turn_s: float) -> None:
        self._geometry = terminal.Geometry(config.columns, config.rows, config.observation_bytes)
        self._limit_s = turn_s + SLACK_S

    @property
    def limit_s(self) -> float:
        return self._limit_s

    def start(self, key: str) -> RunRequest | None:
        return RunRequest(key=key, command=terminal.start_script(self._geometry), limit_s=self._limit_s)

    def screen(self, started: RunResult) -> str:
        return terminal.started(started)

    def request(self, key: str, command: str) -> RunRequest | None:
        program = program_from(command)
        if program.complaint:
            return None
        script = terminal.turn_script(program.keys, self._geometry)
        return RunRequest(key=key, command=script, limit_s=self._limit_s)

    def observation(self, command: str, result: RunResult | None) -> str:
        program = program_from(command)
        if result is None:
            return prompt.complaint(program.complaint, program.warnings)
        shown = terminal.shown_by(result)
        asked = program.complete > 0 and not program.submits
        return prompt.shown(shown.text, kind=shown.kind, fresh=shown.fresh, warnings=program.warnings, confirm=asked)
