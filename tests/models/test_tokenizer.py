import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from t1actors.models.tokenizer import SPECIAL_TOKENS, Tokenizer, TokenizerError, train_tokenizer

CORPUS = ["mkdir -p a/b && echo hello > a/b/c.txt", "wc -l < notes.txt", "rc 0", "sort -n data | head -3"] * 20
TOKENIZER = train_tokenizer(CORPUS, 320)
TEXT = st.text() | st.lists(st.sampled_from([*SPECIAL_TOKENS, " ", "a", "<|", "|>", "end"])).map("".join)


@given(TEXT)
def test_text_comes_back_as_it_was(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(TEXT)
def test_no_text_becomes_a_special_id(text):
    assert not set(TOKENIZER.encode(text)) & set(range(len(SPECIAL_TOKENS)))


def test_special_ids_are_decoded_as_they_are_written():
    special = TOKENIZER.special
    assert (special.pad, special.user, special.assistant, special.tool, special.end) == (0, 1, 2, 3, 4)
    assert TOKENIZER.decode([special.user, *TOKENIZER.encode("hi"), special.end]) == "<|user|>hi<|end|>"


def test_training_is_deterministic_and_saved_files_give_the_same_ids(tmp_path):
    assert train_tokenizer(CORPUS, 320).to_json() == TOKENIZER.to_json()
    TOKENIZER.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again.vocabulary == TOKENIZER.vocabulary <= 320
    assert again.encode_batch(CORPUS[:4]) == [TOKENIZER.encode(text) for text in CORPUS[:4]]
    assert again.encode("<|end|>") == TOKENIZER.encode("<|end|>")


def test_a_tokenizer_without_our_role_markers_has_none_to_give(tmp_path):
    with pytest.raises(TokenizerError, match=r"<\|user\|>"):
        _ = Tokenizer(RawTokenizer(models.BPE())).special
    with pytest.raises(TokenizerError, match=r"no tokenizer.json"):
        Tokenizer.from_folder(tmp_path)


def test_folders_and_tokenizers_need_neither_torch_nor_transformers():
    code = (
        "import sys; import t1actors.models.folder, t1actors.models.tokenizer, t1actors.models.shape, "
        "t1actors.engine.interface; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
