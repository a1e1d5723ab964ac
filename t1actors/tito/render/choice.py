"""Which renderer a tokenizer gets: the family that its marks are of, or one that the configuration names."""

from __future__ import annotations

from t1actors.tito.render.family import FamilyRenderer, Options
from t1actors.tito.render.interface import RenderError
from t1actors.tito.render.pieces import TextTokenizer
from t1actors.tito.render.qwen3 import Qwen3
from t1actors.tito.render.t1 import T1

_FAMILIES = (T1, Qwen3)
"""In the order in which a tokenizer is asked for their marks."""
NAMES = tuple(family.name for family in _FAMILIES)


def family_of(tokenizer: TextTokenizer) -> str:
    """The family whose marks the tokenizer has; our own where it has those of two. Raises ``RenderError`` where it has
    no family's."""
    lacks: list[str] = []
    for family in _FAMILIES:
        missing = [mark for mark in family.marks if tokenizer.token_to_id(mark) is None]
        if not missing:
            return family.name
        lacks.append(f"{', '.join(missing)} of {family.name}")
    raise RenderError(
        f"the tokenizer has the marks of no chat format that can be written here: it lacks {'; '.join(lacks)}"
    )


def renderer_for(tokenizer: TextTokenizer, family: str = "", options: Options | None = None) -> FamilyRenderer:
    """The renderer of ``family``, or of the tokenizer's own. Raises ``RenderError``."""
    name = family or family_of(tokenizer)
    for kind in _FAMILIES:
        if kind.name == name:
            return FamilyRenderer(kind(options or Options()), tokenizer)
    raise RenderError(f"no chat format {name!r}; there are {', '.join(NAMES)}")
