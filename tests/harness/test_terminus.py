"""The Terminus harness without a sandbox: what turns come to, one after the other, and what the model is shown."""

from __future__ import annotations

import json

import pytest

from t1actors.config import TerminusConfig
from t1actors.events import OutputChunk
from t1actors.harness.interface import HarnessError
from t1actors.harness.terminus.harness import TerminusHands, TerminusHarness
from t1actors.harness.terminus.program import Keys, Program, program_from
from t1actors.models.tokenizer import Tokenizer, train_tokenizer
from t1actors.sandbox.interface import RunResult
from t1actors.tito.render.choice import renderer_for
from tests.models.chatml import chatml_tokenizer

OWN = train_tokenizer(
    ['{"analysis": "", "plan": "", "commands": [{"keystrokes": "ls\\n", "duration": 0.5}]}'] * 20, 300
)
CHATML = chatml_tokenizer(think=True)
HANDS = TerminusHands(TerminusConfig(), turn_s=20.0)


def harness(tokenizer: Tokenizer = OWN, **changed: int | float) -> TerminusHarness:
    return TerminusHarness(renderer_for(tokenizer), TerminusConfig(**changed), turn_s=20.0)


def answer(*commands: tuple[str, float], complete: bool = False) -> str:
    listed = [{"keystrokes": keystrokes, "duration": duration} for keystrokes, duration in commands]
    return json.dumps({"analysis": "", "plan": "", "commands": listed, "task_complete": complete})


class Episode:
    """Turns one after the other, each given the command of the one before."""

    def __init__(self, harness: TerminusHarness, tokenizer: Tokenizer = OWN) -> None:
        self.harness = harness
        self.tokenizer = tokenizer
        self.command = ""
        self.end: str | None = None

    def says(self, text: str, *, cut: bool = False) -> Program:
        assert self.end is None
        ids = [*self.tokenizer.encode(text), *(() if cut else self.harness.stop_ids[:1])]
        reading = self.harness.reading(ids, "length" if cut else "stop", previous=self.command)
        self.command = reading.command
        self.end = reading.end or self.harness.end_after(reading.command)
        return program_from(self.command)

    def shown(self, printed: str = "new 0 5\nhello", exit_code: int = 0) -> str:
        result = RunResult(output=(OutputChunk(at_s=0, data=""),), text=printed, exit_code=exit_code, seconds=0.1)
        return HANDS.observation(self.command, result if HANDS.request("key", self.command) else None)


def test_keystrokes_are_typed_as_they_are_and_waits_are_bounded():
    program = Episode(harness(duration_limit_s=10.0)).says(
        answer(("ls\n", 0.5), ("make\n", 99.0), ("x;\0\ud800", 10.0))
    )
    assert program.keys == (Keys("ls\n", 0.5), Keys("make\n", 10.0), Keys("x;?", 9.5))
    assert program.warnings == ("all durations together were cut to 20 s",)


def test_an_answer_that_can_not_be_read_ends_nothing_and_nothing_is_done():
    episode = Episode(harness())
    program = episode.says("ls")
    assert HANDS.request("key", episode.command) is None
    assert episode.end is None
    assert (program.keys, program.unread) == ((), 1)
    assert "nothing of it was done:\n- there is no JSON object in it" in episode.shown()
    assert episode.says(answer(("ls\n", 0.1))).unread == 0


def test_so_many_without_a_break_that_can_not_be_read_end_the_episode():
    episode = Episode(harness(malformed_limit=3))
    for text in ("ls", "ls", answer(), "ls", "ls"):
        episode.says(text)
    assert episode.says("ls").unread == 3
    assert episode.end == "malformed_turns"
    patient = Episode(harness(malformed_limit=0))
    for _ in range(50):
        patient.says("ls")


def test_an_answer_that_was_cut_off_is_one_that_can_not_be_read():
    episode = Episode(harness())
    assert "cut off" in episode.says(answer(("ls\n", 0.1)), cut=True).complaint
    assert "cut off" in episode.shown()


def test_only_the_second_answer_in_a_row_that_says_complete_submits():
    episode = Episode(harness())
    episode.says(answer(complete=True))
    assert "is complete" in episode.shown()
    episode.says(answer(("ls\n", 0.1)))
    assert "is complete" not in episode.shown()
    episode.says(answer(("ls\n", 0.1), complete=True))
    assert episode.end is None
    episode.says("what?")  # neither confirms nor takes back
    episode.says(answer(complete=True))
    assert episode.end == "submitted"


def test_keystrokes_of_the_answer_that_submits_are_typed_before_the_end():
    episode = Episode(harness())
    episode.says(answer(complete=True))
    ids = [*OWN.encode(answer(("touch x\n", 0.1), complete=True)), *episode.harness.stop_ids[:1]]
    reading = episode.harness.reading(ids, "stop", previous=episode.command)
    assert reading.end is None
    assert HANDS.request("key", reading.command) is not None
    assert episode.harness.end_after(reading.command) == "submitted"


@pytest.mark.parametrize(
    ("printed", "code", "shown"),
    [
        ("new 0 5\nhello", 0, "New terminal output:\nhello"),
        ("screen 0 5\nhello", 0, "Current terminal screen:\nhello"),
        ("new 1 5\nhello", 0, "The terminal had ended; this is a new one.\nNew terminal output:\nhello"),
        ("ended 0 0\n", 0, "The terminal's shell has ended. The next keystrokes go to a new one."),
        ("", 124, "The terminal did not answer and was ended. The next keystrokes go to a new one."),
    ],
)
def test_what_the_model_is_shown_of_the_terminal(printed, code, shown):
    episode = Episode(harness())
    episode.says(answer(("ls\n", 0.1)))
    assert episode.shown(printed, code) == shown


def test_remarks_come_before_what_the_terminal_shows():
    episode = Episode(harness())
    episode.says("So: " + answer(("ls\n", 0.1)))
    shown = episode.shown()
    assert shown.startswith(
        "Remarks on your answer:\n- there was text before the JSON object; it was ignored\n\nNew terminal"
    )


def test_a_sandbox_without_tmux_is_named():
    result = RunResult(output=(), text="", exit_code=69, seconds=0.0)
    with pytest.raises(HarnessError, match="no tmux in the sandbox: install it in its image"):
        HANDS.screen(result)


# --- messages as ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [OWN, CHATML])
def test_a_turn_that_was_cut_off_is_closed_by_what_follows(tokenizer):
    of_tokenizer = harness(tokenizer)
    closed = of_tokenizer.observation("go on", last_sampled=of_tokenizer.stop_ids[0])
    assert of_tokenizer.observation("go on", last_sampled=300) == (of_tokenizer.stop_ids[0], *closed)


def test_thinking_is_no_part_of_the_answer():
    text = "<think>\n{}\n</think>\n\n" + answer(("ls\n", 0.1))
    program = Episode(harness(CHATML), CHATML).says(text)
    assert program == Program(keys=(Keys("ls\n", 0.1),))
