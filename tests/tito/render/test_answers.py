"""What a model sampled, read: calls, thinking, what is broken, and what another family would have written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.tito.render.choice import NAMES, renderer_for
from t1actors.tito.render.interface import Answer
from t1actors.tito.render.messages import Tool
from tests.tito.render.conversations import RUN, SET, user
from tests.tito.render.tokenizers import raw_tokenizer, tokenizer_of

RAW = {family: raw_tokenizer(family) for family in NAMES}
RENDERERS = {family: renderer_for(tokenizer_of(family), family) for family in NAMES}
JSON = '{"command":  "ls -l"}'
"""With a space that no renderer writes: it stays."""
FORMS = {
    "t1": '<tool_call>\n{"name": "run", "arguments": %s}\n</tool_call>',
    "qwen3": '<tool_call>\n{"name": "run", "arguments": %s}\n</tool_call>',
    "kimi": "<|tool_call_begin|>functions.run:7<|tool_call_argument_begin|>%s<|tool_call_end|>",
    "deepseek": "<｜tool▁call▁begin｜>run<｜tool▁sep｜>%s<｜tool▁call▁end｜>",
    "mistral": "[TOOL_CALLS]run[ARGS]%s",
}
"""A call with JSON in it."""
SECTIONS = {
    "kimi": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "deepseek": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
}
TEXT_CALL = {
    "qwen3.5": "<tool_call>\n<function=run>\n<parameter=command>\nls -l\n</parameter>\n</function>\n</tool_call>",
    "glm4": "<tool_call>run\n<arg_key>command</arg_key>\n<arg_value>ls -l</arg_value>\n</tool_call>",
    "glm5": "<tool_call>run<arg_key>command</arg_key><arg_value>ls -l</arg_value></tool_call>",
}
TEXT_CALL["qwen3.6"] = TEXT_CALL["qwen3.5"]
BROKEN = {
    "t1": "<tool_call>\n{'name': 'run'}\n</tool_call>",
    "qwen3": '<tool_call>\n{"name": "run", "arguments": "ls"}\n</tool_call>',
    "qwen3.5": "<tool_call>\n<function=run>\nls\n</function>\n</tool_call>",
    "qwen3.6": "<tool_call>\nls -l\n</tool_call>",
    "glm4": "<tool_call>run<arg_key>a</arg_key></tool_call>",
    "glm5": "<tool_call><arg_key>a</arg_key><arg_value>b</arg_value></tool_call>",
    "kimi": "<|tool_call_begin|>run<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "deepseek": "<｜tool▁call▁begin｜>run{}<｜tool▁call▁end｜>",
    "mistral": "[TOOL_CALLS]run[ARGS]{ls}",
}


def read(family: str, text: str, *, closed: bool = True, tools: tuple[Tool, ...] = (), turn: str = "t/3") -> Answer:
    """The answer in ``text``, whose marks the model sampled."""
    renderer = RENDERERS[family]
    ids = RAW[family].encode(text, add_special_tokens=False).ids
    return renderer.answer([*ids, renderer.stop_ids[0]] if closed else ids, turn=turn, tools=tools)


def call(family: str) -> str:
    return TEXT_CALL.get(family) or FORMS[family] % JSON


def calls(family: str, *written: str) -> str:
    start, end = SECTIONS.get(family, ("", ""))
    return start + ("" if start else "\n" if family not in ("mistral",) else "").join(written) + end


@pytest.mark.parametrize("family", BROKEN)
def test_the_calls_of_a_turn_are_read_in_order_and_named_by_turn_and_place(family):
    text = "Both." + calls(family, call(family), call(family))
    if family in ("qwen3.5", "qwen3.6", "glm5"):
        text = "hm</think>" + text
    answer = read(family, text)
    assert answer.content == "Both."
    assert [made.name for made in answer.calls] == ["run", "run"]
    assert {made.arguments for made in answer.calls} == {JSON if family in FORMS else '{"command": "ls -l"}'}
    assert len({made.id for made in answer.calls}) == 2
    assert all("t/3" in made.id for made in answer.calls)
    assert (answer.broken, answer.foreign, answer.closed, answer.canonical) == ((), "", True, True)
    assert read(family, text).calls == answer.calls


@pytest.mark.parametrize("family", BROKEN)
def test_a_broken_call_takes_no_valid_one_with_it(family):
    prefix = "hm</think>" if family in ("qwen3.5", "qwen3.6", "glm5") else ""
    answer = read(family, prefix + calls(family, BROKEN[family], call(family)))
    assert [made.name for made in answer.calls] == ["run"]
    assert [found.text for found in answer.broken] == [BROKEN[family]]
    assert all(found.reason for found in answer.broken)


@pytest.mark.parametrize("family", [name for name in BROKEN if name not in ("mistral", "deepseek", "kimi")])
def test_a_call_that_was_not_closed_is_broken(family):
    prefix = "hm</think>" if family in ("qwen3.5", "qwen3.6", "glm5") else ""
    answer = read(family, prefix + call(family).removesuffix("</tool_call>"), closed=False)
    assert (answer.calls, len(answer.broken), answer.closed) == ((), 1, False)
    assert "not closed" in answer.broken[0].reason


@pytest.mark.parametrize("family", SECTIONS)
def test_a_section_that_was_not_closed_gives_the_calls_that_were(family):
    start, _ = SECTIONS[family]
    text = start + call(family) + call(family)
    answer = read(family, text[: text.rindex("}")], closed=False)
    assert (len(answer.calls), len(answer.broken)) == (1, 1)


@pytest.mark.parametrize("family", ["t1", "qwen3", "glm4", "kimi", "deepseek", "mistral"])
def test_thinking_is_apart_from_the_answer(family):
    think, end = ("[THINK]", "[/THINK]") if family == "mistral" else ("<think>", "</think>")
    answer = read(family, f"{think}Easy.{end}It is 2.")
    assert (answer.reasoning, answer.content) == ("Easy.", "It is 2.")


@pytest.mark.parametrize("family", ["qwen3.5", "glm5", "deepseek"])
def test_thinking_that_the_prompt_opened_ends_where_the_model_says(family):
    answer = read(family, "Easy.</think>\n\nIt is 2." if family == "qwen3.5" else "Easy.</think>It is 2.")
    assert (answer.reasoning, answer.content) == ("Easy.", "It is 2.")


@pytest.mark.parametrize(("family", "text"), [("qwen3", "<think>\nhm"), ("qwen3.5", "hm"), ("glm5", "hm")])
def test_thinking_that_was_cut_off_is_no_answer(family, text):
    answer = read(family, text, closed=False)
    assert (answer.reasoning, answer.content, answer.closed) == ("hm", "", False)


def test_a_tag_in_what_a_model_thinks_calls_nothing():
    answer = read("qwen3", "<think>\nI could " + call("qwen3") + "\n</think>\n\nNo.")
    assert (answer.calls, answer.broken, answer.content) == ((), (), "No.")


WRITTEN = {
    "qwen3": call("qwen3"),
    "qwen3.5": call("qwen3.5"),
    "glm": call("glm4"),
    "kimi": calls("kimi", call("kimi")),
    "deepseek": calls("deepseek", call("deepseek")),
    "gptoss": f"<|channel|>commentary to=functions.run <|constrain|>json<|message|>{JSON}",
    "llama3": '{"name": "run", "parameters": {"command": "ls"}}',
    "mistral": call("mistral"),
}
OWN = {"t1": "qwen3", "qwen3.6": "qwen3.5", "glm4": "glm", "glm5": "glm", "mistral-v3": "mistral"}
FOREIGN = [(family, theirs) for family in NAMES for theirs in WRITTEN if OWN.get(family, family) != theirs]


@pytest.mark.parametrize(("family", "theirs"), FOREIGN)
def test_another_familys_call_is_recognised_and_is_no_call(family, theirs):
    prefix = "hm</think>" if family in ("qwen3.5", "qwen3.6", "glm5") else ""
    answer = read(family, prefix + WRITTEN[theirs])
    assert (answer.calls, answer.broken, answer.foreign) == ((), (), theirs)
    assert "run" in answer.content


@pytest.mark.parametrize("family", NAMES)
def test_plain_text_is_nobodys_call(family):
    prefix = "hm</think>" if family in ("qwen3.5", "qwen3.6", "glm5") else ""
    for text in ("ls > a && grep -c '<b>' [x]", '{"name": "a"}', "a < b"):
        answer = read(family, prefix + text)
        assert (answer.content, answer.calls, answer.broken, answer.foreign) == (text, (), (), "")


def test_text_arguments_become_what_the_tool_declares_or_else_the_json_that_they_are():
    pairs = {"mode": "3", "count": "3", "deep": "True", "names": '["ä"]', "place": "none", "maybe": "null"}
    text = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in pairs.items())
    told = read("glm4", f"<tool_call>set{text}</tool_call>", tools=(SET,)).calls[0]
    assert json.loads(told.arguments) == {
        **{"mode": "3", "count": 3, "deep": True, "names": ["ä"], "place": "none", "maybe": "null"}
    }
    untold = read("glm4", f"<tool_call>set{text}</tool_call>").calls[0]
    assert json.loads(untold.arguments) == {**json.loads(told.arguments), "mode": 3, "maybe": None}


def test_a_parameter_keeps_its_own_line_ends():
    text = "</think><tool_call>\n<function=run>\n<parameter=command>\n\na\n\n</parameter>\n</function>\n</tool_call>"
    assert json.loads(read("qwen3.5", text, tools=(RUN,)).calls[0].arguments) == {"command": "\na\n"}


def test_harmonys_channels_are_told_apart():
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.run <|constrain|>json<|message|>{JSON}"
    )
    answer = read("gptoss", text)
    assert (answer.reasoning, answer.content) == ("Hm.", "I look.")
    assert [(made.name, made.arguments) for made in answer.calls] == [("run", JSON)]
    assert read("gptoss", f" to=functions.run<|channel|>commentary json<|message|>{JSON}").calls == answer.calls
    assert read("gptoss", "<|channel|>final<|message|>Done.").content == "Done."
    elsewhere = read("gptoss", "<|channel|>analysis to=python code<|message|>print(1)")
    assert (elsewhere.calls, len(elsewhere.broken)) == ((), 1)


def test_llamas_calls_are_json_that_the_answer_begins_with():
    one, two = '{"name": "run", "parameters": {"command": "ls"}}', '{"name": "now", "parameters": {}}'
    answer = read("llama3", f"<|python_tag|>{one}; {two}")
    assert [made.name for made in answer.calls] == ["run", "now"]
    assert read("llama3", one + '; {"name": "run", ').broken
    assert read("llama3", f"I would write {one}").calls == ()
    assert read("llama3", f"I look.<|python_tag|>{one}").content == "I look."


def test_nemos_calls_stand_in_a_list_and_keep_their_names():
    one = '{"name": "run", "arguments": {"command": "ls"}, "id": "Ab3Ab3Ab3"}'
    answer = read("mistral-v3", f'[TOOL_CALLS][{one}, {{"name": "run", "arguments": {{}}}}]')
    assert answer.calls[0].id == "Ab3Ab3Ab3@t/3_0"
    assert len(answer.calls) == 2
    assert read("mistral-v3", f'[TOOL_CALLS][{one}, {{"name": ]').broken[0].text == '{"name": ]'


def test_an_answer_to_a_call_is_shown_under_the_name_that_the_model_gave_it():
    made = read("kimi", calls("kimi", call("kimi"))).calls[0]
    renderer = RENDERERS["kimi"]
    result = user("out")
    result = type(result)(role="tool", content="out", tool_call_id=made.id)
    shown = tokenizer_of("kimi").decode(renderer.extension([result], last_sampled=renderer.stop_ids[0]))
    assert "## Return of functions.run:7\nout<|im_end|>" in shown


PIECES = sorted({*WRITTEN.values(), *BROKEN.values(), "<think>", "</think>", "[", "{", '"', "}" * 3, "é", "[[[[" * 5})


@pytest.mark.parametrize("family", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_is_sampled_is_an_answer(family, data):
    renderer, raw = RENDERERS[family], RAW[family]
    size = raw.get_vocab_size(with_added_tokens=True)
    numbers = st.lists(st.integers(0, size + 3), max_size=40)
    marks = st.lists(st.sampled_from(range(size - 30, size)), max_size=10)
    text = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
    written = text.map(lambda found: raw.encode(found, add_special_tokens=False).ids)
    ids = data.draw(
        st.lists(numbers | marks | written, max_size=4).map(lambda found: [i for part in found for i in part])
    )
    answer = renderer.answer(ids, turn="t")
    assert answer.closed == (ids[-1:] != [] and ids[-1] in renderer.stop_ids)
    assert all(isinstance(json.loads(made.arguments), dict) for made in answer.calls)
    assert len({made.id for made in answer.calls}) == len(answer.calls)
    renderer.extension(
        [type(user(""))(role="tool", content="x", tool_call_id="functions.run@t_0")], last_sampled=ids[-1] if ids else 0
    )


@pytest.mark.parametrize("family", NAMES)
def test_json_that_is_nested_too_deeply_is_broken_or_text(family):
    deep = '{"a":' * 5_000
    for text in (deep, FORMS.get(family, "%s") % deep, WRITTEN["llama3"].replace('{"command": "ls"}', deep)):
        assert read(family, text).calls == ()
