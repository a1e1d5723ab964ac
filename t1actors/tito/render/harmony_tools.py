"""Tools as harmony introduces them: types in the manner of TypeScript, made of their JSON schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from t1actors.tito.render.calls import as_json
from t1actors.tito.render.messages import Tool

_PLAIN = {"number": "number", "integer": "number", "boolean": "boolean"}
_WIDEST = 50
"""Characters of an array's element type, beyond which it is ``any``."""


def tools_text(tools: Sequence[Tool]) -> str:
    """The namespace ``functions`` with all of them."""
    return "## functions\n\nnamespace functions {\n\n" + "".join(map(_tool, tools)) + "} // namespace functions"


def _tool(tool: Tool) -> str:
    head = f"// {tool.description}\ntype {tool.name} = "
    properties = _mapping(tool.parameters.get("properties"))
    if not properties:
        return head + "() => any;\n\n"
    required = _names(tool.parameters.get("required"))
    lines = "".join(_property(name, _mapping(spec), name in required, required) for name, spec in properties.items())
    return head + "(_: {\n" + lines + "}) => any;\n\n"


def _property(name: str, spec: dict[str, Any], needed: bool, required: Sequence[str]) -> str:
    text = f"// {spec['description']}\n" if spec.get("description") else ""
    text += f"{name}{'' if needed else '?'}: {_type(spec, required)}"
    if "default" in spec:
        default = spec["default"]
        if spec.get("enum"):
            text += f", // default: {default}"
        elif spec.get("oneOf"):
            text += f"// default: {default}"
        else:
            text += f", // default: {as_json(default)}"
    return text + ",\n"


def _type(spec: dict[str, Any], required: Sequence[str]) -> str:
    kind = spec.get("type")
    nullable = " | null" if spec.get("nullable") else ""
    if kind == "array":
        return _array(_mapping(spec.get("items"))) + nullable
    if kinds := _names(kind):
        return " | ".join(kinds)
    if spec.get("oneOf"):
        return _one_of([_mapping(variant) for variant in cast("list[object]", spec["oneOf"])], required)
    if kind == "string":
        if spec.get("enum"):
            return '"' + '" | "'.join(map(str, spec["enum"])) + '"'
        return "string" + nullable
    if kind == "object":
        return _object(spec)
    return _PLAIN.get(str(kind), "any")


def _array(items: dict[str, Any]) -> str:
    if not items:
        return "any[]"
    if items.get("type") == "string":
        return "string[]"
    inner = _type(items, [])
    return "any[]" if inner == "object | object" or len(inner) > _WIDEST else f"{inner}[]"


def _one_of(variants: list[dict[str, Any]], required: Sequence[str]) -> str:
    if len(variants) > 1 and any(variant.get("type") == "object" for variant in variants):
        return "any"
    shown = (
        _type(variant, required) + (f"// {variant['description']}" if variant.get("description") else "")
        for variant in variants
    )
    return " | \n".join(shown)


def _object(spec: dict[str, Any]) -> str:
    properties = _mapping(spec.get("properties"))
    if not properties:
        return "object"
    required = _names(spec.get("required"))
    members = (
        f"{name}{'' if name in required else '?'}: \n                {_type(_mapping(inner), required)}"
        for name, inner in properties.items()
    )
    return "{\n" + ", ".join(members) + "}"


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _names(value: object) -> list[str]:
    return cast("list[str]", value) if isinstance(value, list) else []
