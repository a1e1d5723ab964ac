"""A tokenizer's marks decide which renderer it gets; what none can write is refused with what is missing."""

from __future__ import annotations

import datetime

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from t1actors.models.tokenizer import Tokenizer
from t1actors.tito.render.choice import NAMES, family_of, renderer_for
from t1actors.tito.render.family import Options
from t1actors.tito.render.interface import RenderError
from tests.tito.render.conversations import user
from tests.tito.render.tokenizers import raw_tokenizer, tokenizer_of

SAME_MARKS = {"qwen3.5": "qwen3", "qwen3.6": "qwen3", "glm5": "glm4"}


@pytest.mark.parametrize("family", NAMES)
def test_a_tokenizer_is_of_the_family_whose_marks_it_has(family):
    assert family_of(tokenizer_of(family)) == SAME_MARKS.get(family, family)


@pytest.mark.parametrize("family", SAME_MARKS)
def test_families_that_share_their_marks_are_chosen_by_name(family):
    assert renderer_for(tokenizer_of(family), family).family == family


def test_our_own_marks_go_before_another_familys():
    raw = raw_tokenizer("qwen3")
    raw.add_special_tokens(["<|pad|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"])
    assert family_of(Tokenizer(raw)) == "t1"


def test_a_tokenizer_of_no_family_is_refused_with_what_it_lacks_of_the_nearest():
    raw = RawTokenizer(models.BPE())
    raw.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    with pytest.raises(RenderError, match=r"nearest is qwen3, of whose it lacks <\|endoftext\|>"):
        renderer_for(Tokenizer(raw))


def test_a_name_is_refused_that_is_no_familys_or_not_the_tokenizers():
    with pytest.raises(RenderError, match="no chat format 'qwen9'; there are t1, qwen3"):
        renderer_for(tokenizer_of("qwen3"), "qwen9")
    with pytest.raises(RenderError, match=r"llama3: it lacks <\|begin_of_text\|>"):
        renderer_for(tokenizer_of("qwen3"), "llama3")


def test_a_date_is_told_only_where_it_is_given_or_the_template_has_a_fixed_one():
    def opening(family: str, today: datetime.date | None) -> str:
        tokenizer = tokenizer_of(family)
        return tokenizer.decode(renderer_for(tokenizer, family, Options(today=today)).opening([user("Hello.")]))

    day = datetime.date(2026, 3, 4)
    assert "Current date" not in opening("gptoss", None)
    assert "Current date: 2026-03-04\n" in opening("gptoss", day)
    assert "Today Date: 26 Jul 2024\n" in opening("llama3", None)
    assert "Today Date: 04 Mar 2026\n" in opening("llama3", day)
