"""The conversations that golden texts are made of: ours, short, and each for one thing that templates do differently."""

from __future__ import annotations

from typing import NamedTuple

from t1actors.tito.render.messages import Message, Tool, ToolCall

RUN = Tool(
    name="run",
    description="Runs a command.",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "What to run."},
            "limit_s": {"type": "number", "default": 5},
        },
        "required": ["command"],
    },
)
SET = Tool(
    name="set",
    description="Sets values.",
    parameters={
        "type": "object",
        "properties": {
            "mode": {"type": "string", "enum": ["on", "off"], "default": "on"},
            "count": {"type": "integer"},
            "deep": {"type": "boolean"},
            "names": {"type": "array", "items": {"type": "string"}},
            "place": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x"],
            },
            "either": {"oneOf": [{"type": "string"}, {"type": "number"}]},
            "maybe": {"type": ["string", "null"]},
        },
    },
)
NOW = Tool(name="now", description="Says what time it is.", parameters={"type": "object", "properties": {}})


class Conversation(NamedTuple):
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


def system(content: str) -> Message:
    return Message(role="system", content=content)


def user(content: str) -> Message:
    return Message(role="user", content=content)


def tool(content: str, call: str) -> Message:
    return Message(role="tool", content=content, tool_call_id=call)


def said(content: str, *calls: tuple[str, str, str], thought: str = "") -> Message:
    """An assistant's message; calls are (id, name, arguments)."""
    made = tuple(ToolCall(id=id, name=name, arguments=arguments) for id, name, arguments in calls)
    return Message(role="assistant", content=content, reasoning=thought, tool_calls=made)


BE_BRIEF = system("Be brief.")
CONVERSATIONS = {
    "one question": Conversation((user("What is in a/b?"),)),
    "talk": Conversation((BE_BRIEF, user("Hello.\nAre you there?"), said("Yes."), user("Good: 12 × 3?"))),
    "calls": Conversation(
        (
            BE_BRIEF,
            user("How many lines?"),
            said("I look.", ("aaaaaaaa1", "run", '{"command": "wc -l < \\"a\\""}')),
            tool("12", "aaaaaaaa1"),
            said("", ("aaaaaaaa2", "run", '{"command": "ls"}')),
            tool("a\nb\n", "aaaaaaaa2"),
            said("Twelve."),
            user("Thanks."),
        ),
        (RUN, NOW),
    ),
    "two calls at once": Conversation(
        (
            user("Both, please."),
            said("", ("bbbbbbbb1", "now", "{}"), ("bbbbbbbb2", "run", '{"command": "date"}')),
            tool("noon", "bbbbbbbb1"),
            tool("Tue", "bbbbbbbb2"),
        ),
        (RUN, NOW),
    ),
    "values of all kinds": Conversation(
        (
            user("Set it."),
            said(
                "",
                (
                    "cccccccc1",
                    "set",
                    '{"mode": "off", "count": 3, "deep": true, "names": ["ä", "b"], "place": {"x": 1.5}}',
                ),
            ),
            tool("done", "cccccccc1"),
        ),
        (SET,),
    ),
    "thinks, then calls": Conversation(
        (
            user("List."),
            said("", ("dddddddd1", "run", '{"command": "ls"}'), thought="It wants ls."),
            tool("a", "dddddddd1"),
        ),
        (RUN,),
    ),
    "thought before the last question": Conversation((user("1 + 1?"), said("2", thought="Easy."), user("2 + 2?"))),
}
