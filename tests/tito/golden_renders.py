"""Golden texts of other people's chat templates, made again by whoever has the templates:

    python -m tests.tito.golden_renders --templates DIRECTORY

renders ``tests/tito/render/conversations.py`` with each template of ``TEMPLATES`` that lies in the directory, as transformers
does (but lists may be appended to, which Kimi's templates do), and writes ``tests/tito/render/golden/``: the texts, and the
template's name, source and SHA-256. The templates themselves are not kept here. What one refuses is written as its refusal.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import SandboxedEnvironment

from t1actors.tito.render.calls import described
from t1actors.tito.render.messages import Message
from tests.tito.render.conversations import BE_BRIEF, CONVERSATIONS, Conversation

GOLDEN = Path(__file__).parent / "render" / "golden"
TODAY = datetime.date(2026, 3, 4)
TRL = "trl 1.16.0 from PyPI, trl/chat_templates"
LLAMA_CPP = "llama-cpp-python 0.3.36 from PyPI, vendor/llama.cpp/models/templates"


class Template(NamedTuple):
    """``file`` as its source names it, the family here that it is compared with, and what it is given besides."""

    file: str
    source: str
    family: str
    given: dict[str, Any]
    reasoning: str = "reasoning_content"
    """The key of a message's reasoning; ``blocks``: a block of its content."""
    thinking: bool = True
    """The option that our renderer has beside it."""
    told: bool = False
    """A conversation without a system message is given one: the template would make up its own."""


TEMPLATES = {
    "qwen3": Template("qwen3.jinja", TRL, "qwen3", {}),
    "qwen3, no thinking": Template("qwen3.jinja", TRL, "qwen3", {"enable_thinking": False}, thinking=False),
    "qwen3.5": Template("qwen3_5_think.jinja", TRL, "qwen3.5", {}),
    "qwen3.6 keeping thinking": Template("qwen3_6.jinja", TRL, "qwen3.6", {"preserve_thinking": True}),
    "glm 4.5": Template("glm4moe.jinja", TRL, "glm4", {}),
    "glm 4.7": Template("GLM-4.7-Flash.jinja", LLAMA_CPP, "glm5", {}),
    "glm 4.7 keeping thinking": Template("GLM-4.7-Flash.jinja", LLAMA_CPP, "glm5", {"clear_thinking": False}),
    "kimi k2": Template("Kimi-K2-Instruct.jinja", LLAMA_CPP, "kimi", {}),
    "kimi k2 thinking": Template("Kimi-K2-Thinking.jinja", LLAMA_CPP, "kimi", {}),
    "deepseek v3.1": Template("deepseek-ai-DeepSeek-V3.1.jinja", LLAMA_CPP, "deepseek", {"thinking": True}),
    "gpt-oss": Template("gptoss.jinja", TRL, "gptoss", {}, "thinking"),
    "llama 3.1": Template("llama3_1.jinja", TRL, "llama3", {}),
    "llama 3.2": Template("llama3_2.jinja", TRL, "llama3", {}),
    "ministral 3": Template(
        "mistralai-Ministral-3-14B-Reasoning-2512.jinja", LLAMA_CPP, "mistral", {}, "blocks", told=True
    ),
    "mistral nemo": Template("mistralai-Mistral-Nemo-Instruct-2407.jinja", LLAMA_CPP, "mistral-v3", {}),
}
BEGIN = {"deepseek": "<｜begin▁of▁sentence｜>", "llama3": "<|begin_of_text|>", "mistral": "<s>", "mistral-v3": "<s>"}


class TemplateRefusal(Exception):
    """A template has no form for a conversation."""


def rendered(template: Template, source: str, conversation: Conversation) -> str:
    """The text that transformers makes of it. Raises ``TemplateRefusal``."""

    def refuse(message: str) -> None:
        raise TemplateRefusal(message)

    def tojson(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": refuse, "strftime_now": TODAY.strftime}
    return environment.from_string(source).render(
        messages=[message_of(message, template) for message in conversation.messages],
        tools=[described(tool) for tool in conversation.tools] or None,
        add_generation_prompt=True,
        bos_token=BEGIN.get(template.family, ""),
        eos_token="</s>",
        **template.given,
    )


def conversation_for(template: Template, title: str) -> Conversation:
    """The conversation of that title, as the template is given it."""
    conversation = CONVERSATIONS[title]
    if template.told and conversation.messages[0].role != "system":
        return conversation._replace(messages=(BE_BRIEF, *conversation.messages))
    return conversation


def message_of(message: Message, template: Template) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"type": "function", "id": c.id, "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
            for c in message.tool_calls
        ]
    if message.reasoning and template.reasoning == "blocks":
        text = [{"type": "text", "text": message.content}] if message.content else []
        found["content"] = [{"type": "thinking", "thinking": message.reasoning}, *text]
    elif message.reasoning:
        found[template.reasoning] = message.reasoning
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


def write(name: str, template: Template, source: str) -> None:
    renders: dict[str, list[str] | str] = {}
    for title in CONVERSATIONS:
        try:
            renders[title] = rendered(template, source, conversation_for(template, title)).splitlines(keepends=True)
        except (TemplateRefusal, jinja2.TemplateError, TypeError) as error:
            renders[title] = f"refused: {error}"
    golden = {
        "template": template.file,
        "source": template.source,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "given": template.given,
        "renders": renders,
    }
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{name}.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Golden texts of chat templates")
    parser.add_argument("--templates", type=Path, required=True, help="a directory with the template files")
    directory = parser.parse_args().templates
    for name, template in TEMPLATES.items():
        path = directory / template.file
        if path.is_file():
            write(name, template, path.read_text())
            print(f"{name}: written")
        else:
            print(f"{name}: no {path}; left as it is")


if __name__ == "__main__":
    main()
