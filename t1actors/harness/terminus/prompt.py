"""What a model is told in the Terminus protocol: how to answer, what it sees, what was wrong, and whether it is done.

The protocol's fields and rules are those that models of this protocol know; the words are ours.
"""

from __future__ import annotations

from collections.abc import Sequence

_HOW = """\
You control a Linux terminal (tmux, {columns} columns, {rows} rows) and are to complete the task below, alone. In each turn \
you are shown the terminal and answer with one JSON object, and nothing around it:

{{"analysis": "what the terminal shows: what is done, what is missing",
 "plan": "what you do next, and what you expect of it",
 "commands": [{{"keystrokes": "ls -la\\n", "duration": 0.5}}],
 "task_complete": false}}

- "commands": typed in this order; may be empty.
- "keystrokes": typed exactly as they are. A line runs only when it ends with \\n. A text that is only the name of a key, as \
tmux writes it, is that key: C-c, C-d, Escape, Up.
- "duration": seconds to wait after them, at most {wait_s:g}; 1.0 when left out. Short for what is quick; for what takes \
long rather look again, with empty keystrokes, than wait long.
- "task_complete": true once the task is done. You are asked once more, and then it is graded.
"""
_TASK = "\nTask:\n{instruction}\n\n{rest}\n"
_NEW = "New terminal output:\n"
_SCREEN = "Current terminal screen:\n"
_ENDED = "The terminal's shell has ended. The next keystrokes go to a new one."
_SILENT = "The terminal did not answer and was ended. The next keystrokes go to a new one."
_FRESH = "The terminal had ended; this is a new one.\n"
_COMPLAINT = """\
Your answer could not be read, and nothing of it was done:
{problems}

Answer with one JSON object with "analysis", "plan" and "commands"."""
_WARNINGS = "Remarks on your answer:\n{problems}\n\n"
_CONFIRM = """


You say that the task is complete. It is graded as it stands, and nothing can be changed afterwards. If that is right, \
answer with "task_complete": true again; else go on."""
TRUNCATED = "it was longer than an answer may be and was cut off; take smaller steps"


def opening(instruction: str, rest: str, *, columns: int, rows: int, wait_s: float) -> str:
    """The first message. ``rest`` follows the task."""
    how = _HOW.format(columns=columns, rows=rows, wait_s=wait_s)
    return how + _TASK.format(instruction=instruction.strip(), rest=rest)


def current(screen: str) -> str:
    """What is shown of the terminal before the first turn."""
    return _SCREEN + screen


def complaint(problem: str, warnings: Sequence[str]) -> str:
    """What is shown instead of the terminal after an answer that could not be read."""
    return _COMPLAINT.format(problems=_listed([problem, *warnings]))


def shown(terminal: str, *, kind: str, fresh: bool, warnings: Sequence[str] = (), confirm: bool = False) -> str:
    """What is shown of the terminal, with what is to be said of the turn. ``kind`` is ``terminal.Kind``; ``confirm``: the
    model is asked whether the task is complete."""
    bodies = {"new": _NEW + terminal, "screen": _SCREEN + terminal, "ended": _ENDED, "silent": _SILENT}
    said = _WARNINGS.format(problems=_listed(warnings)) if warnings else ""
    return said + (_FRESH if fresh else "") + bodies[kind] + (_CONFIRM if confirm else "")


def _listed(problems: Sequence[str]) -> str:
    return "\n".join(f"- {problem}" for problem in problems)
