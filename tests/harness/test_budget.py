"""The context budget: when a call fits, when a summary is asked for, and what a new chunk begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors import config as cfg
from t1actors.config import ConfigError, TerminusConfig
from t1actors.harness.budget import Call, Standing, next_call
from t1actors.harness.interface import Harness
from t1actors.harness.shell import ShellHarness
from t1actors.harness.summary import REQUEST
from t1actors.harness.terminus.harness import TerminusHarness
from t1actors.models.tokenizer import train_tokenizer
from t1actors.tito.render.choice import renderer_for

TOKENIZER = train_tokenizer([REQUEST, "echo hello > note.txt", "rc 0"] * 20, 400)
SHELL = ShellHarness(TOKENIZER)
TERMINUS = TerminusHarness(renderer_for(TOKENIZER), TerminusConfig(), turn_s=20.0)
END = TOKENIZER.special.end
ROLLOUT = cfg.resolve(
    sets=["rollout.compaction=summary", "rollout.summary_tokens=50", "rollout.max_new_tokens=40", "rollout.max_ids=400"]
).config.rollout
FIRST = Standing(0, 9, (), "make dir a", "$", None, None)


def later(ids: int, **changes: object) -> Standing:
    return FIRST._replace(turn=1, ids=(*range(5, 5 + ids - 1), END), observation="rc 0")._replace(**changes)


def call(harness: Harness, at: Standing, **changes: object) -> Call:
    found = next_call(harness, replace(ROLLOUT, **changes), at)
    assert isinstance(found, Call), found
    return found


def test_an_episode_begins_with_its_instruction_and_goes_on_with_what_was_shown():
    assert call(SHELL, FIRST) == (SHELL.opening("make dir a", "$"), 40, "")
    assert call(SHELL, later(20)) == (SHELL.observation("rc 0", last_sampled=END), 40, "")


def test_without_compaction_a_call_gets_what_is_left_and_none_where_nothing_is():
    observed = len(SHELL.observation("rc 0", last_sampled=END))
    assert call(SHELL, later(390 - observed), compaction="none").max_new_tokens == 10
    assert next_call(SHELL, replace(ROLLOUT, compaction="none"), later(400 - observed)) == "token_limit"
    assert next_call(SHELL, replace(ROLLOUT, compaction="none"), later(20, turn=9)) == "turn_limit"


def test_a_summary_is_asked_for_where_after_the_next_call_there_might_be_no_room_for_one():
    observed, asked = len(SHELL.observation("rc 0", last_sampled=END)), len(SHELL.summary_request(last_sampled=END))
    fits = 400 - 50 - asked - 40 - observed
    assert call(SHELL, later(fits)).compaction == ""
    assert call(SHELL, later(fits + 1)) == (SHELL.summary_request(last_sampled=END), 50, "summary")


def test_a_new_chunk_holds_the_instruction_the_summary_and_what_was_to_be_shown():
    context, most, compaction = call(SHELL, later(380, summary="made a, b is left"))
    assert (most, compaction) == (40, "start")
    text = TOKENIZER.decode(context)
    assert [text.count(part) for part in ("make dir a", "made a, b is left", "rc 0")] == [1, 1, 1]


def test_a_summary_that_leaves_no_room_for_work_ends_the_episode():
    assert next_call(SHELL, ROLLOUT, later(380, summary="x" * 400)) == "compaction_failed"
    assert SHELL.summary([*TOKENIZER.encode("half a"), 7], "length").end == "compaction_failed"


def test_the_terminal_is_explained_again_in_a_new_chunk():
    at = later(2000, summary="made a", observation="New terminal output:\n$")
    context = call(TERMINUS, at, max_ids=4000).context_ids
    text = TOKENIZER.decode(context)
    assert text.index("tmux") < text.index("make dir a") < text.index("made a") < text.index("New terminal output")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([SHELL, TERMINUS]), st.integers(500, 3000), st.data())
def test_no_chunk_is_ever_longer_than_it_may_be_and_every_summary_has_its_room(harness, max_ids, data):
    rollout = replace(ROLLOUT, max_ids=max_ids)
    at = FIRST._replace(turn_limit=40)
    asked_before = False
    while isinstance(found := next_call(harness, rollout, at), Call):
        before = () if found.compaction == "start" else at.ids
        room = rollout.max_ids - len(before) - len(found.context_ids)
        assert 0 < found.max_new_tokens <= room
        if found.compaction == "summary" and asked_before:  # a task's opening alone may be too long
            assert found.max_new_tokens == rollout.summary_tokens
        sampled = (*[7] * data.draw(st.integers(0, found.max_new_tokens - 1)), END)
        shown = "o" * data.draw(st.integers(0, 300))
        summed_up = found.compaction == "summary"
        asked_before |= summed_up
        at = at._replace(
            turn=at.turn + 1,
            ids=(*before, *found.context_ids, *sampled),
            observation=at.observation if summed_up else shown,
            summary="s" * data.draw(st.integers(0, 60)) if summed_up else None,
        )
    assert found in ("turn_limit", "token_limit", "compaction_failed")


def test_a_configuration_in_which_summary_and_answer_fill_the_window_is_refused():
    sets = ["rollout.compaction=summary", "rollout.max_ids=640", "rollout.max_new_tokens=240"]
    with pytest.raises(ConfigError, match=r"rollout\.max_ids = 640: a summary, an answer and the next summary"):
        cfg.resolve(sets=[*sets, "rollout.summary_tokens=200"])
    cfg.resolve(sets=[*sets, "rollout.summary_tokens=199"])
    cfg.resolve(sets=[*sets[1:], "rollout.summary_tokens=200"])
