"""A ChatML tokenizer and a random tiny Qwen3-MoE folder, as a user would bring them."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from t1actors.models.tokenizer import Tokenizer

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
CHATML_TOKENS = (IM_START, IM_END, "<|endoftext|>")
CORPUS = ["mkdir -p a/b && echo hello > a/b/c.txt", "user\nassistant\nsystem\nrc 0", "wc -l < notes.txt", "submit"] * 20


def raw_chatml(vocabulary: int = 320, *, think: bool = False) -> RawTokenizer:
    """A byte-level BPE whose special tokens come last, as those of Qwen models do."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(CORPUS, trainer)
    raw.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in CHATML_TOKENS])
    if think:  # as Qwen3 has them: added, and not special
        raw.add_tokens([tokenizers.AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])
    return raw


def chatml_tokenizer(*, think: bool = False) -> Tokenizer:
    return Tokenizer(raw_chatml(think=think))


def make_chatml_folder(folder: Path, *, seed: int = 0) -> Path:
    """A policy of random weights with a ChatML tokenizer, written by the libraries themselves."""
    import torch
    from transformers import PreTrainedTokenizerFast
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM

    from t1actors.models.demo import tiny_config

    raw = raw_chatml()
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=IM_END, pad_token=CHATML_TOKENS[2])
    fast.save_pretrained(folder)
    config = tiny_config(vocabulary=384)  # larger than the tokenizer's, as those of Qwen models are
    config.eos_token_id = raw.token_to_id(IM_END)
    torch.manual_seed(seed)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3_moe"
    return folder
