"""The tokenizer: text to ids and back, through the ``tokenizers`` library only (no torch, no transformers).

Any family's tokenizer will do; which chat format it is of is ``tito.render.choice``'s business. ``special`` are the ids of
our own five special tokens.

Guarantees: text never becomes a special id (``encode`` treats ``<|end|>`` in a command's output as plain characters,
so no output can forge the end of a turn); ``decode`` of ids keeps every byte it can.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

PAD, USER, ASSISTANT, TOOL, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"
SPECIAL_TOKENS = (PAD, USER, ASSISTANT, TOOL, END)
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""What a Hugging Face folder may hold of its tokenizer."""


class TokenizerError(Exception):
    """A tokenizer that lacks what the harness needs. Says what."""


@dataclass(frozen=True)
class SpecialIds:
    """The ids that only the harness writes: role markers and the end of a turn."""

    pad: int
    user: int
    assistant: int
    tool: int
    end: int


class Tokenizer:
    """A wrapper over ``tokenizer.json``."""

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw = raw
        # Special tokens are for decoding; in text to encode they are plain characters.
        raw.encode_special_tokens = True

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder. Raises ``TokenizerError``."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{folder}: no tokenizer.json")
        return cls(RawTokenizer.from_file(str(path)))

    @property
    def special(self) -> SpecialIds:
        """Our own marks. Raises ``TokenizerError`` for a tokenizer of another chat format."""
        found = {token: self.token_to_id(token) for token in SPECIAL_TOKENS}
        ids = [number for number in found.values() if number is not None]
        if len(ids) < len(found):
            lacks = ", ".join(token for token, number in found.items() if number is None)
            raise TokenizerError(f"not a tokenizer of t1actors' own: it lacks {lacks}")
        return SpecialIds(*ids)

    @property
    def vocabulary(self) -> int:
        return self._raw.get_vocab_size()

    @property
    def largest_id(self) -> int:
        return max(self._raw.get_vocab(with_added_tokens=True).values(), default=-1)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as it is written; None where there is none."""
        return self._raw.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``; never a special id."""
        return self._raw.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As ``encode``, for each text."""
        return [encoding.ids for encoding in self._raw.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens included as they are written."""
        return self._raw.decode(list(ids), skip_special_tokens=False)

    def to_json(self) -> str:
        """What ``tokenizer.json`` holds."""
        return self._raw.to_str(pretty=True)

    def save(self, folder: Path) -> None:
        """``tokenizer.json`` and the ``tokenizer_config.json`` that ``AutoTokenizer`` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self.to_json())
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "extra_special_tokens": [USER, ASSISTANT, TOOL],
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def copy_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer's files as they are: what another program reads there is what it read before."""
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def train_tokenizer(corpus: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE of ``vocabulary`` words, the special tokens first; deterministic in the corpus."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = cast(Any, pre_tokenizers).ByteLevel(add_prefix_space=False)
    raw.decoder = cast(Any, decoders).ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[tokenizers.AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(corpus, trainer)
    return Tokenizer(raw)
