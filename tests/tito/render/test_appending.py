"""What is added call by call is what one render of the whole conversation gives, and text is never a mark.

Faults T1 to T6 of ``docs/known-faults.md`` as far as rendering can commit them.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from t1actors.tito.render.choice import NAMES, renderer_for
from t1actors.tito.render.family import FamilyRenderer, Options
from t1actors.tito.render.interface import RenderError
from tests.tito.render.conversations import BE_BRIEF, CONVERSATIONS, said, tool, user
from tests.tito.render.tokenizers import ADDED, SPECIAL, raw_tokenizer, tokenizer_of

RAW = {family: raw_tokenizer(family) for family in NAMES}
TOKENIZERS = {family: tokenizer_of(family) for family in NAMES}
RENDERERS = {family: renderer_for(TOKENIZERS[family], family) for family in NAMES}
MARKS = {family: [*SPECIAL[family], *ADDED.get(family, ())] for family in NAMES}


def ids_of(family: str, text: str) -> list[int]:
    return TOKENIZERS[family].encode(text)


def mark(family: str, text: str) -> int:
    number = TOKENIZERS[family].token_to_id(text)
    assert number is not None
    return number


def sampled_in(renderer: FamilyRenderer, whole: tuple[int, ...], start: int) -> tuple[int, ...]:
    """The answer that stands in ``whole`` from ``start`` on, up to the stop that ends it."""
    end = next(place for place in range(start, len(whole)) if whole[place] in renderer.stop_ids)
    return whole[start : end + 1]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("title", [title for title in CONVERSATIONS if title != "one question"])
@pytest.mark.parametrize("family", [name for name in NAMES if name != "gptoss"])
def test_opening_answers_and_extensions_are_one_render_of_the_whole(family, title, thinking):
    renderer = renderer_for(TOKENIZERS[family], family, Options(thinking=thinking))
    messages, tools = CONVERSATIONS[title]
    if not thinking:
        messages = tuple(replace(message, reasoning="") for message in messages)
    whole = renderer.opening(messages, tools)
    answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
    stream = renderer.opening(messages[: answers[0]], tools)
    for place, following in zip(answers, [*answers[1:], len(messages)], strict=True):
        sampled = sampled_in(renderer, whole, len(stream))
        made = renderer.answer(sampled, turn=str(place), tools=tools).calls
        assert [call.name for call in made] == [call.name for call in messages[place].tool_calls]
        given_ids = {old.id: new.id for old, new in zip(messages[place].tool_calls, made, strict=True)}
        added = [
            replace(message, tool_call_id=given_ids.get(message.tool_call_id, ""))
            for message in messages[place + 1 : following]
        ]
        stream += sampled + renderer.extension(added, last_sampled=sampled[-1])
        assert stream == whole[: len(stream)]
    assert stream == whole


def test_harmonys_stream_differs_from_the_whole_in_the_id_that_ends_a_final_answer():
    renderer = RENDERERS["gptoss"]
    end, stop = mark("gptoss", "<|end|>"), mark("gptoss", "<|return|>")
    question, answer, thanks = user("12?"), said("Twelve.", thought="Easy."), user("Thanks.")
    whole = renderer.opening([question, answer, thanks])
    stream = renderer.opening([question])
    added = renderer.extension([thanks], last_sampled=stop)
    body = whole[len(stream) : len(whole) - len(added) - 1]
    assert whole == stream + body + (end,) + added
    assert renderer.answer([*body, stop], turn="t").content == "Twelve."


def test_harmonys_calls_are_one_render_of_the_whole():
    renderer = RENDERERS["gptoss"]
    question, call, result = CONVERSATIONS["thinks, then calls"].messages
    whole = renderer.opening([question, call, result])
    stream = renderer.opening([question])
    sampled = sampled_in(renderer, whole, len(stream))
    given_id = renderer.answer(sampled, turn="t").calls[0].id
    assert stream + sampled + renderer.extension([tool(result.content, given_id)], last_sampled=sampled[-1]) == whole


def test_t1_the_line_end_behind_an_end_of_turn_is_context():
    renderer = RENDERERS["qwen3"]
    end = mark("qwen3", "<|im_end|>")
    sampled = (*ids_of("qwen3", "ls"), end)
    stream = renderer.opening([user("List.")]) + sampled
    added = renderer.extension([tool("a", "1")], last_sampled=end)
    assert TOKENIZERS["qwen3"].decode(added).startswith("\n<|im_start|>user\n<tool_response>")
    assert stream + added == renderer.opening([user("List."), said("ls"), tool("a", "1")])


@pytest.mark.parametrize("family", NAMES)
def test_t2_a_split_that_the_tokenizer_would_not_make_is_reported_and_reads_the_same(family):
    renderer = RENDERERS[family]
    letters = [i for letter in "hello" for i in ids_of(family, letter)]
    assert letters != ids_of(family, "hello")
    canonical, other = (
        renderer.answer([*ids, renderer.stop_ids[0]], turn="t") for ids in (ids_of(family, "hello"), letters)
    )
    assert (canonical.canonical, other.canonical) == (True, False)
    assert canonical._replace(canonical=False) == other


@pytest.mark.parametrize("family", [name for name in NAMES if not name.startswith("glm")])
def test_t3_a_turn_that_was_cut_off_is_closed_as_context(family):
    renderer = RENDERERS[family]
    word = ids_of(family, "word")[-1]
    closed = renderer.extension([user("Go on.")], last_sampled=renderer.stop_ids[0])
    assert renderer.extension([user("Go on.")], last_sampled=word) == (renderer.stop_ids[0], *closed)
    assert not renderer.answer([word], turn="t").closed


@pytest.mark.parametrize("family", ["glm4", "glm5"])
def test_t3_where_no_mark_ends_a_turn_the_next_role_closes_one_that_was_cut_off(family):
    renderer = RENDERERS[family]
    word = ids_of(family, "word")[-1]
    for message, role in ((user("Go on."), "<|user|>"), (tool("out", "1"), "<|observation|>")):
        added = renderer.extension([message], last_sampled=word)
        assert added[0] == mark(family, role)
        assert added[1:] == renderer.extension([message], last_sampled=mark(family, role))


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "glm4", "glm5", "deepseek", "kimi", "mistral"])
def test_t4_thinking_stays_when_a_later_question_comes(family):
    renderer = RENDERERS[family]
    conversation = CONVERSATIONS["thought before the last question"].messages
    text = TOKENIZERS[family].decode(renderer.opening(conversation))
    assert text.count("Easy.") == 1
    assert text.index("Easy.") < text.index("2 + 2?")


@pytest.mark.parametrize("family", ["glm4", "glm5"])
def test_t5_the_role_mark_that_ends_a_turn_is_not_written_again(family):
    renderer = RENDERERS[family]
    observation, questioner = mark(family, "<|observation|>"), mark(family, "<|user|>")
    assert observation not in renderer.extension([tool("out", "1")], last_sampled=observation)
    assert questioner not in renderer.extension([user("Go on.")], last_sampled=questioner)
    other = renderer.extension([tool("out", "1")], last_sampled=questioner)
    assert other[0] == observation  # what was sampled stays, and the right mark follows


@pytest.mark.parametrize(
    ("family", "second"), [("qwen3", "<|endoftext|>"), ("llama3", "<|eom_id|>"), ("gptoss", "<|call|>")]
)
def test_t6_any_end_ends_a_turn_and_none_is_added(family, second):
    renderer = RENDERERS[family]
    stop = mark(family, second)
    assert stop in renderer.stop_ids[1:]
    assert renderer.answer([*ids_of(family, "yes"), stop], turn="t").closed
    messages = [user("Go on.")]
    first = renderer.extension(messages, last_sampled=renderer.stop_ids[0])
    assert renderer.extension(messages, last_sampled=stop) == first


@pytest.mark.parametrize("family", NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_text_is_ever_a_mark(family, data):
    parts = st.lists(
        st.sampled_from([*MARKS[family], "<", ">", "|", " ", "a", "\n", "\\"]) | st.text(max_size=3), max_size=8
    )
    text = data.draw(parts.map("".join))
    renderer, tokenizer = RENDERERS[family], TOKENIZERS[family]
    marks = {mark(family, name) for name in MARKS[family]}

    def marks_of(ids: tuple[int, ...]) -> list[int]:
        return [i for i in ids if i in marks]

    def shown(content: str) -> tuple[int, ...]:
        return renderer.extension([tool(content, "functions.run@t_0")], last_sampled=renderer.stop_ids[0])

    assert marks_of(shown(text)) == marks_of(shown("a"))
    opening = [BE_BRIEF, user(text), said(text, thought=text), user("a")]
    plain = [BE_BRIEF, user("a"), said("a", thought="a"), user("a")]
    if text.strip():
        assert marks_of(renderer.opening(opening)) == marks_of(renderer.opening(plain))
    if family not in ("llama3", "gptoss", "qwen3.5", "qwen3.6"):  # which trim it, or show it as JSON
        assert text in tokenizer.decode(shown(text))


@pytest.mark.parametrize("family", NAMES)
@settings(max_examples=40, deadline=None)
@given(text=st.lists(st.sampled_from(["\n", "\n\n", " ", "  ", "ls", "12", "#", ".", "é"]), max_size=6).map("".join))
def test_text_is_encoded_as_one_piece_with_the_familys_own_beside_it(family, text):
    """A line end in front of a text may be one token with the line end that the template puts there."""
    renderer, tokenizer, raw = RENDERERS[family], TOKENIZERS[family], RAW[family]
    opening = renderer.opening([BE_BRIEF, user(text)])
    added = renderer.extension([tool(text, "functions.run@t_0"), user(text)], last_sampled=renderer.stop_ids[0])
    for ids in (opening, added):
        assert list(ids) == raw.encode(tokenizer.decode(ids), add_special_tokens=False).ids


@pytest.mark.parametrize("family", NAMES)
def test_what_cannot_be_written_is_refused(family):
    renderer = RENDERERS[family]
    for messages in ([], [said("I answer myself")], [user("a"), said("b")]):
        with pytest.raises(RenderError):
            renderer.extension(messages, last_sampled=renderer.stop_ids[0])
    with pytest.raises(RenderError):
        renderer.opening([])


@pytest.mark.parametrize("family", ["qwen3.5", "deepseek", "gptoss", "mistral-v3"])
def test_a_system_message_in_the_middle_is_refused_by_families_that_have_no_place_for_it(family):
    with pytest.raises(RenderError, match="system"):
        RENDERERS[family].extension([BE_BRIEF], last_sampled=RENDERERS[family].stop_ids[0])
