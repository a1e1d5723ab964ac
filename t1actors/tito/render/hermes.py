"""Tool calls as JSON between tags, the format that Qwen3 was taught and our own marks borrow:

<tool_call>
{"name": "run", "arguments": {"command": "ls"}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence

from t1actors.tito.render.calls import TAGGED, Reading, as_json, described, read_blocks, read_json_call
from t1actors.tito.render.messages import Tool, ToolCall


def tools_text(tools: Sequence[Tool]) -> str:
    """How tools are introduced."""
    listed = "".join("\n" + as_json(described(tool)) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>{listed}\n</tools>\n\n"
    )


CALL_HOW = (
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def call_text(call: ToolCall) -> str:
    """What stands between the tags."""
    return f'\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n'


def read_calls(text: str) -> Reading:
    """``text`` with its calls taken out."""
    return read_blocks(text, TAGGED, read_json_call)
