"""Where our renderers differ from the families' templates, and why: nearly always because a turn is written the same whatever
comes after it, and nothing that a model said or thought is taken out of what it sees later.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from t1actors.tito.render.calls import as_json, described
from t1actors.tito.render.kimi import declared
from tests.tito.render.conversations import CONVERSATIONS


class Pin(NamedTuple):
    why: str
    changes: tuple[tuple[str, str], ...]
    """(what the template writes, what we write), each wherever it stands."""


def before(prefix: str, added: str, *starts: str) -> tuple[tuple[str, str], ...]:
    """``added`` stands behind ``prefix`` and before each of ``starts``."""
    return tuple((prefix + start, prefix + added + start) for start in starts)


def without(prefix: str, left_out: str, *starts: str) -> tuple[tuple[str, str], ...]:
    return tuple((prefix + left_out + start, prefix + start) for start in starts)


QWEN = "<|im_start|>assistant\n"
EMPTY = "<think>\n\n</think>\n\n"
QWEN_KEPT = Pin("earlier thinking is not dropped", before(QWEN, "<think>\nEasy.\n</think>\n\n", "2<|im_end|>"))
QWEN35_CALL = (
    "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
)
QWEN35_ANSWER = "<|im_start|>user\n<tool_response>\na\nb"
"""Which tells the call apart from one behind the last question."""
GLM5_BLOCK = Pin(
    "every answer stands behind the <think> that its prompt ended with",
    before("<|assistant|>", "<think>", "</think>Yes.", "</think>I look.", "</think><tool_call>", "</think>Twelve."),
)
KIMI = "<|im_assistant|>assistant<|im_middle|>"
KIMI_CALLS = "<|tool_calls_section_begin|><|tool_call_begin|>"
GPT = "<|start|>assistant"
GPT_CALL = " to=functions.run<|channel|>commentary json<|message|>"
GPT_ANSWER = ' to=assistant<|channel|>commentary<|message|>"Tue"'
GPT_SAYS = f"<|channel|>commentary<|message|>I look.<|end|>{GPT}"
GPT_THINKS = f"<|channel|>analysis<|message|>Easy.<|end|>{GPT}"
LLAMA = "<|start_header_id|>assistant<|end_header_id|>\n\n"
LLAMA_CALL = '{"name": "run", "parameters": {"command": '
LLAMA_KEPT = (
    Pin("what is said beside a call is not dropped", before(LLAMA, "I look.<|python_tag|>", LLAMA_CALL + '"wc')),
    Pin(
        "thinking, for which the template has no form, is not dropped",
        (
            *before("List.<|eot_id|>" + LLAMA, "<think>\nIt wants ls.\n</think>\n\n", LLAMA_CALL),
            *before(LLAMA, "<think>\nEasy.\n</think>\n\n", "2<|eot_id|>"),
        ),
    ),
)
KIMI_TOOLS = Pin(
    "tools are without spaces and sorted, which Kimi's own tokenizer does before its template",
    tuple(
        (as_json([described(tool) for tool in conversation.tools]), declared(conversation.tools))
        for conversation in CONVERSATIONS.values()
        if conversation.tools
    ),
)
NEMO_TOOLS = f"[AVAILABLE_TOOLS]{as_json([described(tool) for tool in CONVERSATIONS['calls'].tools])}[/AVAILABLE_TOOLS]"

PINNED: dict[str, tuple[Pin, ...]] = {
    "qwen3": (QWEN_KEPT,),
    "qwen3, no thinking": (
        QWEN_KEPT,
        Pin(
            "every answer stands behind the empty block that its prompt ended with",
            before(QWEN, EMPTY, "Yes.", "I look.", "<tool_call>", "Twelve."),
        ),
    ),
    "qwen3.5": (
        QWEN_KEPT,
        Pin(
            "every answer stands behind the <think> that its prompt ended with",
            before(QWEN, EMPTY, "Yes.", "I look.", QWEN35_CALL + QWEN35_ANSWER, "Twelve."),
        ),
    ),
    "qwen3.6 keeping thinking": (),
    "glm 4.5": (Pin("earlier thinking is not dropped", (("<think></think>\n2", "<think>Easy.</think>\n2"),)),),
    "glm 4.7": (
        Pin("earlier thinking is not dropped", before("<|assistant|>", "<think>Easy.", "</think>2")),
        GLM5_BLOCK,
    ),
    "glm 4.7 keeping thinking": (GLM5_BLOCK,),
    "kimi k2": (
        KIMI_TOOLS,
        Pin("no line end behind the system text that the template makes up", (("AI.<|im_end|>\n", "AI.<|im_end|>"),)),
        Pin(
            "thinking, for which the template has no form, is not dropped",
            (
                *before(KIMI, "<think>Easy.</think>", "2<|im_end|>"),
                *before("List.<|im_end|>" + KIMI, "<think>It wants ls.</think>", KIMI_CALLS),
            ),
        ),
    ),
    "kimi k2 thinking": (
        KIMI_TOOLS,
        Pin("earlier thinking is not dropped", ((KIMI + "<think></think>2", KIMI + "<think>Easy.</think>2"),)),
        Pin(
            "no empty block is put into a turn",
            without(KIMI, "<think></think>", "Yes.", "I look.", KIMI_CALLS, "Twelve."),
        ),
    ),
    "deepseek v3.1": (
        Pin(
            "thinking, for which the template has no form, is not dropped",
            (
                *before("<think>", "Easy.", "</think>2"),
                *before("List.<｜Assistant｜><think>", "It wants ls.", "</think>"),
            ),
        ),
    ),
    "gpt-oss": (
        Pin("earlier thinking is not dropped", before(GPT, GPT_THINKS, "<|channel|>final<|message|>2<|end|>")),
        Pin("what is said beside a call is not dropped", before(GPT, GPT_SAYS, GPT_CALL + '{"command": "wc')),
        Pin(
            "a second call of a turn is not dropped, and each answer names its own",
            (
                ("{}<|call|>", "{}<|call|>" + GPT + GPT_CALL + '{"command": "date"}<|call|>'),
                ("functions.now" + GPT_ANSWER, "functions.run" + GPT_ANSWER),
            ),
        ),
    ),
    "llama 3.1": LLAMA_KEPT,
    "llama 3.2": LLAMA_KEPT,
    "ministral 3": (),
    "mistral nemo": (
        Pin(
            "system text and tools stay with the first user message",
            (
                ("<s>[INST]Hello", "<s>[INST]Be brief.\n\nHello"),
                ("[INST]Be brief.\n\nGood", "[INST]Good"),
                ("<s>[INST]How", f"<s>{NEMO_TOOLS}[INST]Be brief.\n\nHow"),
                (f"Twelve.</s>{NEMO_TOOLS}[INST]Be brief.\n\nThanks", "Twelve.</s>[INST]Thanks"),
            ),
        ),
        Pin(
            "what is said or thought beside a call is not dropped",
            (
                *before("How many lines?[/INST]", "I look.", "[TOOL_CALLS]"),
                *before("List.[/INST]", "<think>\nIt wants ls.\n</think>\n\n", "[TOOL_CALLS]"),
                *before("1 + 1?[/INST]", "<think>\nEasy.\n</think>\n\n", "2</s>"),
            ),
        ),
    ),
}
REFUSED = {("llama 3.1", "two calls at once"), ("llama 3.2", "two calls at once")}
"""What a template refuses and we write."""
DEEPSEEK_TOOLS = re.compile(r"(?:(?<=Be brief\.)\n\n)?## Tools.*?separators or spaces", re.DOTALL)
"""DeepSeek's template shows no tools: taken out of ours before they are compared."""
