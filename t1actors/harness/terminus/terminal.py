"""A terminal in a sandbox: the bash that drives tmux there, a request for each turn, and what it answers.

The terminal is a tmux session of fixed size on a socket that is on no disk (``/dev/shm``), so nothing of it is in the
sealed tree. A turn is one request, so the sandbox's own rule makes it idempotent: a key is run once, and asked again it
gives what it gave. The request makes the terminal where there is none, types, waits, lets the screen settle, and prints what
is new.

Guarantees: keystrokes are typed verbatim, but for a text that is as a whole the name of a key. What is new is what stands
behind that which was shown before, to the byte: after each turn the scroll-back is cleared, and the lines above the cursor
are kept (in the driving shell) to be compared. Where they are not there any more (the screen was cleared), or a program has
the whole screen, the screen is shown. More than ``limit_bytes`` is cut inside the sandbox, half of them from the head and
half from the tail, so that nothing is lost to the sandbox's own cap.

As far as tmux allows, what is shown is a function of what was typed: after the last wait the terminal is given about
``SETTLE_S`` more to come back to its shell, if something still runs in it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal, NamedTuple

from t1actors.harness.interface import HarnessError
from t1actors.harness.terminus.program import Keys
from t1actors.sandbox.interface import RunResult

Kind = Literal["new", "screen", "ended", "silent"]
"""What is printed: what is new, or the screen. Or nothing: the shell has ended, or the terminal did not answer in time."""
SETTLE_S = 0.5
SCROLL_BACK_LINES = 20_000
"""Of what one turn prints more lines than these, the first are lost."""
_POLL_S = 0.05
_START_S = 5.0
_PART_CHARS = 2000
"""tmux takes no more than about 16,000 bytes at once."""
_LACKS_TMUX = 69

_FUNCTIONS = r"""
t1_tmux() { command tmux -u -f /dev/null -S /dev/shm/.t1-terminal "$@" 2>/dev/null; }
t1_idle() {
  local pid stat
  pid=$(t1_tmux display-message -p -t =t1: '#{pane_pid}') || return
  { read -r stat <"/proc/$pid/stat"; } 2>/dev/null || return
  set -- ${stat##*) }
  [ "$3" = "$6" ]
}
t1_settle() {
  local last=- now n
  for ((n = 0; n < $1; n++)); do
    now=$(t1_tmux capture-pane -p -t =t1:) || return
    [ -n "$now" ] && [ "$now" = "$last" ] && t1_idle && return
    last=$now
    sleep @POLL@
  done
}
t1_open() {
  local language=()
  [ "${LC_ALL-}" = C ] && language=(-e LC_ALL=C.UTF-8)
  t1_before=
  t1_tmux start-server \; set-option -g history-limit @LINES@ \; set-option -g default-terminal screen \; \
    set-option -g status off \; new-session -d -s t1 -x @COLUMNS@ -y @ROWS@ -c "$PWD" \
    "${language[@]}" -e 'PS1=\u@\h:\w\$ ' bash --login
  t1_settle @START@
}
t1_send() { t1_tmux send-keys -t =t1: "$@"; }
t1_show() {
  local LC_ALL=C all state history at whole visible text kind=new
  all=$(t1_tmux capture-pane -p -S - -t =t1: \; \
    display-message -p -t =t1: '#{history_size} #{cursor_y} #{alternate_on}' \; \
    if-shell -F -t =t1: '#{?alternate_on,,1}' 'clear-history -t =t1:') ||
    { printf 'ended %s 0\n' "$t1_fresh"; return 0; }
  state=${all##*$'\n'} all=${all%"${all##*$'\n'}"}
  read -r history at whole <<<"$state"
  visible=$(printf %s "$all" | tail -n "+$((history + 1))"; echo .) visible=${visible%.}
  if [ "$whole" = 1 ]; then
    kind=screen text=$visible
  else
    if [[ $all == "$t1_before"* ]]; then text=${all:${#t1_before}}; else kind=screen text=$visible; fi
    t1_before=$(printf %s "$visible" | head -n "$at"; echo .) t1_before=${t1_before%.}
  fi
  text=${text%"${text##*[!$'\n']}"}
  printf '%s %s %s\n' "$kind" "$t1_fresh" "${#text}"
  if ((${#text} <= @LIMIT@)); then
    printf %s "$text"
  else
    printf '%s\n[... %s bytes are left out here ...]\n%s' "${text:0:@HALF@}" $((${#text} - 2 * @HALF@)) "${text: -@HALF@}"
  fi
}
t1_fresh=0
"""


class Geometry(NamedTuple):
    """The terminal's size, and how much of it is shown at once."""

    columns: int
    rows: int
    limit_bytes: int


class Shown(NamedTuple):
    """What a turn's request printed. ``fresh``: the terminal is a new one, because the last had ended."""

    kind: Kind
    fresh: bool
    text: str


def start_script(geometry: Geometry) -> str:
    """Make a terminal, and print its screen."""
    return (
        f"if command -v tmux >/dev/null; then {_functions(geometry)}t1_open; t1_show; else (exit {_LACKS_TMUX}); fi\n"
    )


def turn_script(keys: Sequence[Keys], geometry: Geometry) -> str:
    """Type ``keys``, wait after each, and print what there is to see. Nothing more is typed once the shell has ended."""
    steps = ["true"]
    for one in keys:
        steps += [f"t1_send {part}" for part in _parts(one.text)]
        if one.wait_s > 0:
            steps.append(f"sleep {one.wait_s:.3f}")
    typing = " &&\n".join(steps)
    return (
        f"{_functions(geometry)}t1_tmux has-session -t =t1 || {{ t1_fresh=1; t1_open; }}\n{typing}\n"
        f"t1_settle {round(SETTLE_S / _POLL_S)}\nt1_show\n"
    )


def started(result: RunResult) -> str:
    """The screen that ``start_script`` printed. Raises ``HarnessError``."""
    if result.exit_code == _LACKS_TMUX:
        raise HarnessError("there is no tmux in the sandbox: install it in its image, or on the host whose /usr it is")
    shown = shown_by(result)
    if shown.kind not in ("new", "screen"):
        raise HarnessError(f"no terminal can be had in the sandbox: {result.text.strip()[-200:] or shown.kind}")
    return shown.text


def shown_by(result: RunResult) -> Shown:
    """What ``turn_script`` printed."""
    header, _, text = result.text.partition("\n")
    words = header.split()
    if result.exit_code != 0 or len(words) != 3 or words[0] not in ("new", "screen", "ended"):
        return Shown("silent", False, "")
    kind: Kind = "new" if words[0] == "new" else "screen" if words[0] == "screen" else "ended"
    return Shown(kind, words[1] == "1", _mended(text))


def _mended(text: str) -> str:
    """Without the pieces of characters that were cut in two."""
    head, cut, tail = text.partition("\n[... ")
    if not cut or " bytes are left out here ...]\n" not in tail:
        return text
    notice, end, rest = tail.partition(" bytes are left out here ...]\n")
    return head.rstrip("\ufffd") + cut + notice + end + rest.lstrip("\ufffd")


def _functions(geometry: Geometry) -> str:
    values = {
        "@POLL@": str(_POLL_S),
        "@LINES@": str(SCROLL_BACK_LINES),
        "@COLUMNS@": str(geometry.columns),
        "@ROWS@": str(geometry.rows),
        "@START@": str(round(_START_S / _POLL_S)),
        "@LIMIT@": str(geometry.limit_bytes),
        "@HALF@": str(geometry.limit_bytes // 2),
    }
    text = _FUNCTIONS
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _parts(text: str) -> list[str]:
    """Arguments of send-keys, quoted. Only a short text can be the name of a key."""
    if len(text) <= _PART_CHARS:
        return [f"-- {_argument(text)}"] if text else []
    return [f"-l -- {_argument(text[at : at + _PART_CHARS])}" for at in range(0, len(text), _PART_CHARS)]


def _argument(text: str) -> str:
    """tmux would take a semicolon at its end for its own."""
    return shlex.quote(text[:-1] + "\\;" if text.endswith(";") else text)
