"""Which renderer a tokenizer gets: the family that its marks are of, or one that the configuration names."""

from __future__ import annotations

from t1actors.tito.render.deepseek import Deepseek
from t1actors.tito.render.family import FamilyRenderer, Options
from t1actors.tito.render.glm import Glm4, Glm5
from t1actors.tito.render.gptoss import GptOss
from t1actors.tito.render.interface import RenderError
from t1actors.tito.render.kimi import Kimi
from t1actors.tito.render.llama3 import Llama3
from t1actors.tito.render.mistral import Mistral, MistralV3
from t1actors.tito.render.pieces import TextTokenizer
from t1actors.tito.render.qwen3 import Qwen3
from t1actors.tito.render.qwen35 import Qwen35, Qwen36
from t1actors.tito.render.t1 import T1

_BY_MARKS = (T1, Qwen3, GptOss, Glm4, Kimi, Deepseek, Llama3, Mistral, MistralV3)
"""In the order in which a tokenizer is asked for their marks."""
_BY_NAME = (Qwen35, Qwen36, Glm5)
"""Their tokenizers have the marks of Qwen3 and of GLM 4.5, too, so somebody has to say it."""
_FAMILIES = (*_BY_MARKS, *_BY_NAME)
NAMES = tuple(family.traits.name for family in _FAMILIES)


def family_of(tokenizer: TextTokenizer) -> str:
    """The family whose marks the tokenizer has; our own where it has those of two. Raises ``RenderError`` where it has
    no family's."""
    missing = {
        family.traits.name: [mark for mark in family.traits.marks if tokenizer.token_to_id(mark) is None]
        for family in _BY_MARKS
    }
    name, lacks = min(missing.items(), key=lambda found: len(found[1]))
    if lacks:
        raise RenderError(
            f"the tokenizer has the marks of no chat format that can be written here ({', '.join(missing)}); the nearest is "
            f"{name}, of whose it lacks {', '.join(lacks)}"
        )
    return name


def renderer_for(tokenizer: TextTokenizer, family: str = "", options: Options | None = None) -> FamilyRenderer:
    """The renderer of ``family``, or of the tokenizer's own. Raises ``RenderError``."""
    name = family or family_of(tokenizer)
    for kind in _FAMILIES:
        if kind.traits.name == name:
            return FamilyRenderer(kind(options or Options()), tokenizer)
    raise RenderError(f"no chat format {name!r}; there are {', '.join(NAMES)}")
