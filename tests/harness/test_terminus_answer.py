"""Reading answers of the Terminus protocol: what is understood, what is remarked, and what the complaint says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.harness.terminus.answer import Answer, Command, read_answer

LS = {"keystrokes": "ls\n", "duration": 0.5}


def answer(**fields: object) -> str:
    return json.dumps({"analysis": "empty", "plan": "look", "commands": [LS]} | fields)


def test_a_whole_answer_is_read_without_a_remark():
    assert read_answer(answer()) == Answer((Command("ls\n", 0.5),))
    assert read_answer(answer(commands=[], task_complete=True)) == Answer(complete=True)


@pytest.mark.parametrize(
    ("value", "complete"), [(True, True), (False, False), ("true", True), ("no", False), (None, False)]
)
def test_the_task_is_complete_where_the_answer_says_so(value, complete):
    assert read_answer(answer(task_complete=value)) == Answer((Command("ls\n", 0.5),), complete=complete)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (f"I think: {answer()}", "text before the JSON object"),
        (f"```json\n{answer()}\n```", "text after the JSON object"),
        (f"use {{}} and {{x}}: {answer()}", "text before the JSON object"),
        (answer()[:-1], "missing brackets were added"),
        (answer()[:-2], "missing brackets were added"),
        (answer(commands=[{"keystrokes": "ls\n"}]), "command 1 has no duration; it was taken to be 1.0 s"),
        (answer(commands=[{"keystrokes": "ls\n", "duration": "2"}]), "the duration of command 1 is no number"),
        (answer(commands=[{"keystrokes": "ls\n", "duration": -1}]), "the duration of command 1 is no number"),
        (answer(commands=[LS | {"timeout": 3}]), 'command 1 has "timeout"'),
        (answer(commands=[{"keystrokes": "ls", "duration": 1}, LS]), "command 1 does not end with a newline"),
        (answer(analysis=7), '"analysis" should be a text'),
        (answer(task_complete=7), '"task_complete" should be true or false'),
        ('{"plan": "", "analysis": "", "commands": []}', "the fields came in the order plan, analysis, commands"),
        (answer(commands="none", task_complete=True), '"commands" must be a list, so nothing was typed'),
    ],
)
def test_what_can_be_understood_all_the_same_is_remarked(text, warning):
    read = read_answer(text)
    assert read.complaint == ""
    assert any(warning in remark for remark in read.warnings), read.warnings


@pytest.mark.parametrize("key", ["C-c", "C-M-x", "Escape", "Up", "PageDown", "F5"])
def test_a_key_needs_no_newline(key):
    read = read_answer(answer(commands=[{"keystrokes": key, "duration": 0.1}, LS]))
    assert read.warnings == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no JSON object"),
        ("ls -la", "no JSON object"),
        ('{"analysis": "a', "its JSON is invalid at line 1"),
        ('{"analysis": "two\nlines", "plan": "", "commands": []}', "its JSON is invalid at line 1, column"),
        ('{"analysis": "a", plan: 1}', "its JSON is invalid"),
        ('{"answer": 42}', 'the JSON object has no "analysis", "plan", "commands"'),
        ('{"analysis": "", "commands": []}', 'the JSON object has no "plan"'),
        (answer(commands={}), '"commands" must be a list'),
        (answer(commands=["ls"]), "command 1 must be an object"),
        (answer(commands=[LS, {"duration": 1}]), 'command 2 must have "keystrokes"'),
        (answer(commands=[{"keystrokes": 7}]), 'command 1 must have "keystrokes"'),
        ("{" * 100_000, "JSON"),
        ('{"a":' * 100_000, "JSON"),
        ('{"analysis": ' + "9" * 5000 + "}", "its JSON can't be read"),
    ],
)
def test_what_can_not_be_read_is_answered_with_what_is_wrong(text, complaint):
    read = read_answer(text)
    assert complaint in read.complaint
    assert (read.commands, read.complete) == ((), False)


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=80)
    | st.lists(st.sampled_from(["{", "}", '"', "\\", "[", "]", ":", ",", "commands", "1"])).map("".join)
)
def test_every_text_is_read(text):
    read = read_answer(text)
    assert read.complaint or read.commands or read.complete or read == Answer(warnings=read.warnings)
