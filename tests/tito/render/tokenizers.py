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

_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_THINK = ("<think>", "</think>")
_TAGS = (*_THINK, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_GLM = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_MISTRAL_V3 = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
SPECIAL = {
    "t1": ("<|pad|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
    "qwen3": _CHATML,
    "qwen3.5": _CHATML,
    "qwen3.6": _CHATML,
    "glm4": _GLM,
    "glm5": _GLM,
    "kimi": (
        *("[EOS]", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    "deepseek": (
        *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        *("<｜tool▁sep｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
    "gptoss": ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
    "llama3": (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    ),
    "mistral": (*_MISTRAL_V3, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    "mistral-v3": _MISTRAL_V3,
}
ADDED = {
    "qwen3": _TAGS,
    "qwen3.5": _TAGS,
    "qwen3.6": _TAGS,
    "glm4": (*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "glm5": (*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "kimi": _THINK,
    "deepseek": _THINK,
}
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
