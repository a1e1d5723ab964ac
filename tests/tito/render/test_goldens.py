"""Our renderers against the families' own chat templates, whose texts lie in ``golden/`` (``tests.tito.golden_renders``).

Where we differ, we differ on purpose: ``pinned`` says which text of the template's becomes which of ours; nothing else may.
"""

from __future__ import annotations

import json

import pytest

from t1actors.tito.render.choice import renderer_for
from t1actors.tito.render.family import FamilyRenderer, Options
from tests.tito.golden_renders import GOLDEN, TEMPLATES, TODAY, conversation_for
from tests.tito.render.conversations import CONVERSATIONS
from tests.tito.render.pinned import DEEPSEEK_TOOLS, PINNED, REFUSED
from tests.tito.render.tokenizers import raw_tokenizer, tokenizer_of

PAIRS = [(name, title) for name in TEMPLATES for title in CONVERSATIONS]


def golden_of(name: str) -> dict[str, list[str] | str]:
    return json.loads((GOLDEN / f"{name}.json").read_text())["renders"]


def renderer_of(name: str) -> FamilyRenderer:
    template = TEMPLATES[name]
    today = None if name == "llama 3.1" else TODAY  # whose template has its fixed date
    return renderer_for(
        tokenizer_of(template.family), template.family, Options(thinking=template.thinking, today=today)
    )


def ours(name: str, title: str) -> tuple[tuple[int, ...], str]:
    conversation = conversation_for(TEMPLATES[name], title)
    ids = renderer_of(name).opening(conversation.messages, conversation.tools)
    return ids, tokenizer_of(TEMPLATES[name].family).decode(ids)


def pinned(name: str, text: str) -> str:
    for pin in PINNED[name]:
        for theirs, here in pin.changes:
            text = text.replace(theirs, here)
    return text


@pytest.mark.parametrize(("name", "title"), PAIRS)
def test_a_conversation_is_the_templates_text_but_for_what_is_pinned(name, title):
    theirs = golden_of(name)[title]
    if isinstance(theirs, str):
        assert (name, title) in REFUSED
        return
    text = ours(name, title)[1]
    if name == "deepseek v3.1":
        text = DEEPSEEK_TOOLS.sub("", text)
    assert text == pinned(name, "".join(theirs))


@pytest.mark.parametrize("name", TEMPLATES)
def test_nothing_is_pinned_that_does_not_occur(name):
    texts = ["".join(text) for text in golden_of(name).values()]
    for pin in PINNED[name]:
        idle = [theirs for theirs, _ in pin.changes if not any(theirs in text for text in texts)]
        assert not idle, pin.why


@pytest.mark.parametrize(("name", "title"), PAIRS)
def test_its_ids_are_those_of_the_whole_text_encoded_with_its_marks(name, title):
    """Encoded apart only where an answer begins behind a prompt that does not end with a mark."""
    family = TEMPLATES[name].family
    ids, text = ours(name, title)
    begins = {"qwen3.5": "assistant\n<think>\n", "qwen3.6": "assistant\n<think>\n"}.get(family)
    parts = text.replace(begins, begins + "\0").split("\0") if begins else [text]
    raw = raw_tokenizer(family)
    assert list(ids) == [i for part in parts for i in raw.encode(part, add_special_tokens=False).ids]


def test_deepseek_is_told_of_tools_as_its_card_says():
    text = ours("deepseek v3.1", "two calls at once")[1]
    assert text.startswith(
        "<｜begin▁of▁sentence｜>## Tools\nYou have access to the following tools:\n\n"
        "### run\nDescription: Runs a command.\n\n"
        'Parameters: {"type": "object", "properties": {"command": '
    )
    assert "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>" in text
