"""A terminal for tests: what a person would see of the bytes that a command writes. Knows what our displays use; anything
else fails the test. Lines that the width breaks are joined again when it grows, as most terminals do."""

import io
import re

_TOKEN = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")


class Terminal(io.StringIO):
    """A stream, and the screen that it paints. One character is one cell."""

    def __init__(self, columns, rows):
        super().__init__()
        self.columns, self.rows = columns, rows
        self.lines = [""]
        self.broken = [False]
        """Whether a line goes on in the next one."""
        self.row = self.column = 0
        self.cursor_shown = True

    def isatty(self):
        return True

    def text(self):
        """The lines that are not empty, those above the visible ones too."""
        return [line.rstrip() for line in self.lines if line.strip()]

    def visible(self):
        """The last rows of the screen, without empty ones."""
        return [line.rstrip() for line in self.lines[-self.rows :] if line.strip()]

    def resize(self, columns, rows):
        """Keeps the cursor at the end of the text before it, as terminals do."""
        logical, cursor = [""], 0
        for n, (line, goes_on) in enumerate(zip(self.lines, self.broken, strict=True)):
            if n == self.row:
                cursor = len(logical) - 1
                self.column += len(logical[-1])
            logical[-1] += line
            if not goes_on:
                logical.append("")
        self.columns, self.rows = columns, rows
        self.lines, self.broken = [], []
        for n, line in enumerate(logical[:-1] or [""]):
            pieces = [line[at : at + columns] for at in range(0, max(1, len(line)), columns)]
            if n == cursor:
                self.row = len(self.lines) + min(self.column // columns, len(pieces) - 1)
                self.column = min(self.column - columns * (self.row - len(self.lines)), columns)
            self.lines += pieces
            self.broken += [True] * (len(pieces) - 1) + [False]

    def write(self, text):
        for match in _TOKEN.finditer(text):
            private, numbers, command = match[1], match[2], match[3]
            match match[0]:
                case "\r":
                    self.column = 0
                case "\n":
                    self._down()
                    self.column = 0
                case _ if command is None:
                    assert "\x1b" not in match[0], f"an escape code that no display of ours uses: {text!r}"
                    self._put(match[0])
                case _:
                    self._obey(private, numbers, command)
        return len(text)

    def _obey(self, private, numbers, command):
        match private + command:
            case "m":
                pass
            case "?h" | "?l":
                assert numbers == "25"
                self.cursor_shown = command == "h"
            case "A":
                self.row = max(self.row - int(numbers or 1), max(0, len(self.lines) - self.rows))
            case "K":
                assert numbers == "2"
                self.lines[self.row] = ""
                self.broken[self.row] = False
            case "J":
                assert numbers in ("", "0")
                self.lines[self.row] = self.lines[self.row][: self.column]
                self.broken[self.row] = False
                del self.lines[self.row + 1 :], self.broken[self.row + 1 :]
            case unknown:
                raise AssertionError(f"an escape code that no display of ours uses: {numbers}{unknown}")

    def _down(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")
            self.broken.append(False)

    def _put(self, text):
        for character in text:
            if self.column == self.columns:
                self.broken[self.row] = True
                self._down()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1
