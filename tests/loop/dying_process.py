"""An actor's process that kills itself, with -9, at a moment chosen for it: ``RunPlan.program`` of the kill storms.

``RUN/deaths.json`` holds for each actor one moment an incarnation, in order: ``[when, kind, nth]``, the ``nth`` time that an
incarnation comes to that moment with an event or effect of that kind. Who dies writes so to ``RUN/deaths.txt`` first. A
fourth item names an actor that is killed in the same instant.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from t1actors.runtime.moments import NOBODY, Moments
from t1actors.runtime.process import Arguments, end, main

PLAN, TOLD, PIDS = "deaths.json", "deaths.txt", "pids"


class _Kind(msgspec.Struct):
    kind: str


_kind = msgspec.msgpack.Decoder(_Kind)


class Doomed(Moments):
    """Dies at one moment."""

    def __init__(self, run_dir: Path, actor: str, when: str, kind: str, nth: int, also: str = "") -> None:
        self._told = run_dir / TOLD
        self._also = run_dir / PIDS / also if also else None
        self._actor = actor
        self._moment = (when, kind)
        self._left = nth

    def opened(self) -> None:
        self._at("opened", "")

    def recovered(self) -> None:
        self._at("recovered", "")

    def before_commit(self, events: Sequence[bytes]) -> None:
        self._with("before commit", events)

    def after_commit(self, events: Sequence[bytes]) -> None:
        self._with("after commit", events)

    def before_act(self, kind: str, key: str) -> None:
        self._at("before act", kind)

    def after_act(self, kind: str, key: str) -> None:
        self._at("after act", kind)

    def _with(self, when: str, events: Sequence[bytes]) -> None:
        for kind, count in Counter(_kind.decode(raw).kind for raw in events).items():
            for _ in range(count):
                self._at(when, kind)

    def _at(self, when: str, kind: str) -> None:
        if (when, kind) == self._moment:
            self._left -= 1
            if not self._left:
                with self._told.open("a") as file:
                    file.write(json.dumps([self._actor, when, kind]) + "\n")
                if self._also is not None and self._also.exists():
                    with suppress(ProcessLookupError):  # it is just being started again
                        os.kill(int(self._also.read_text()), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)


def doom(arguments: Arguments) -> Moments:
    """The next moment that is chosen for this actor, if there is one left."""
    run_dir, told = arguments.run_dir, arguments.run_dir / TOLD
    (run_dir / PIDS).mkdir(exist_ok=True)
    (run_dir / PIDS / arguments.name).write_text(str(os.getpid()))
    lines = told.read_text().splitlines() if told.exists() else []
    died = sum(json.loads(line)[0] == arguments.name for line in lines)
    chosen = json.loads((run_dir / PLAN).read_text()).get(arguments.name, [])
    return Doomed(run_dir, arguments.name, *chosen[died]) if died < len(chosen) else NOBODY


if __name__ == "__main__":
    end(main(moments=doom))
