"""Words and variables as a Dockerfile has them: quotes, backslashes, ``$NAME`` and ``${NAME:-default}``.

Pure functions. Raises ``ValueError`` for what cannot be read; the caller names the place.
"""

from __future__ import annotations

from collections.abc import Mapping


def raw_words(text: str) -> list[str]:
    """Split at blanks that are not quoted; quotes and backslashes stay."""
    words: list[str] = []
    word, quote, escaped, begun = "", "", False, False
    for char in text:
        if escaped:
            word, escaped = word + char, False
            continue
        if char == "\\" and quote != "'":
            word, escaped, begun = word + char, True, True
        elif quote:
            word += char
            quote = "" if char == quote else quote
        elif char in "'\"":
            word, quote, begun = word + char, char, True
        elif char.isspace():
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + char, True
    if quote:
        raise ValueError("no closing quotation mark")
    return [*words, word] if begun else words


def expand(word: str, values: Mapping[str, str]) -> str:
    """``word`` without its quotes and with its variables' values; one that is not set is empty."""
    return _Expansion(word, values).run()


def has_variable(text: str) -> bool:
    """Whether something in it would be expanded (or is an escaped ``$``)."""
    return "$" in text


class _Expansion:
    def __init__(self, text: str, values: Mapping[str, str]) -> None:
        self._text = text
        self._at = 0
        self._values = values

    def run(self) -> str:
        found = ""
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "'":
                end = self._text.find("'", self._at + 1)
                if end < 0:
                    raise ValueError("no closing quotation mark")
                found += self._text[self._at + 1 : end]
                self._at = end + 1
            elif char == '"':
                found += self._double_quoted()
            elif char == "\\":
                found += self._text[self._at + 1 : self._at + 2]
                self._at += 2
            elif char == "$":
                found += self._variable()
            else:
                found += char
                self._at += 1
        return found

    def _double_quoted(self) -> str:
        self._at += 1
        found = ""
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return found
            if char == "$":
                found += self._variable()
            elif char == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "$", "\\"):
                found += self._text[self._at + 1]
                self._at += 2
            else:
                found += char
                self._at += 1
        raise ValueError("no closing quotation mark")

    def _variable(self) -> str:
        self._at += 1
        if self._text[self._at : self._at + 1] == "{":
            return self._braced()
        name = self._name()
        return self._values.get(name, "") if name else "$"

    def _name(self) -> str:
        start = self._at
        while self._at < len(self._text) and (self._text[self._at].isalnum() or self._text[self._at] == "_"):
            self._at += 1
            if self._text[start].isdigit():
                break
        return self._text[start : self._at]

    def _braced(self) -> str:
        self._at += 1
        name = self._name()
        rest_at = self._at
        depth = 1
        while depth:
            if self._at >= len(self._text):
                raise ValueError("${ without its }")
            depth += {"{": 1, "}": -1}.get(self._text[self._at], 0)
            self._at += 1
        rest = self._text[rest_at : self._at - 1]
        value = self._values.get(name)
        if not name:
            raise ValueError(f"${{{rest}}} names no variable")
        if not rest:
            return value or ""
        there = value is not None
        if rest.startswith(":"):
            there, rest = bool(value), rest[1:]
        operator, word = rest[:1], rest[1:]
        if operator == "-":
            return (value or "") if there else expand(word, self._values)
        if operator == "+":
            return expand(word, self._values) if there else ""
        if operator == "?" and there:
            return value or ""
        if operator == "?":
            raise ValueError(f"${{{name}}} is not set: {expand(word, self._values)}")
        raise ValueError(f"${{{name}{rest}}}: only :-, :+ and :? are supported")
