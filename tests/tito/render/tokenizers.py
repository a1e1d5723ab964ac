"""Small byte-level tokenizers with the added tokens of each family, special or not as the family's own has them."""

from __future__ import annotations

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from t1actors.models.tokenizer import Tokenizer

CORPUS = [
    "system user assistant tool developer functions.run to=assistant",
    "mkdir -p a/b && echo hello > a/b/c.txt",
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n",
    '{"name": "run", "arguments": {"command": "ls"}}\n',
    "# Instructions\n\nYou work in a Linux shell.\n\n  rc 0\n",
] * 20
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Words, numbers, punctuation with the line ends behind it: as the tokenizers of these families split."""

_QWEN = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPECIAL = {
    "t1": ("<|pad|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
    "qwen3": _QWEN,
}
ADDED = {"qwen3": _TAGS}
"""Added and not special: found in text, too."""


def raw_tokenizer(family: str, vocabulary: int = 400) -> RawTokenizer:
    """Encodes marks in text as marks, as a template's whole text is encoded."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(CORPUS, trainer)
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL[family]])
    raw.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED.get(family, ())])
    return raw


def tokenizer_of(family: str) -> Tokenizer:
    return Tokenizer(raw_tokenizer(family))
