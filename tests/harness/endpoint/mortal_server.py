"""An endpoint in a process of its own, which kills itself (SIGKILL) at a chosen moment of its n-th turn:

    python -m tests.harness.endpoint.mortal_server DIRECTORY PORT [MOMENT N]

Moments: ``sampling`` (the engine is at work), ``before`` and ``after`` the commit, ``streaming`` (part of the answer is out).
"""

import os
import signal
import sys
from pathlib import Path

import anyio

from t1actors.harness.endpoint import chat
from t1actors.harness.endpoint.journal import FileJournal
from t1actors.harness.endpoint.serving import serve
from t1actors.harness.endpoint.settings import Settings
from tests.harness.endpoint.scripted import GEOMETRY, ScriptedEngine
from tests.tito.plain_renderer import PlainRenderer

MOMENTS = ("sampling", "before", "after", "streaming")


class Fate:
    """Kills the process when ``moment`` comes for the n-th time."""

    def __init__(self, moment: str, n: int) -> None:
        self._moment = moment
        self._left = n

    def comes(self, moment: str) -> None:
        if moment == self._moment:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalJournal(FileJournal):
    def __init__(self, directory: Path, fate: Fate) -> None:
        super().__init__(directory)
        self._fate = fate

    def _append(self, writer, commits) -> None:
        self._fate.comes("before")
        super()._append(writer, commits)
        self._fate.comes("after")


class MortalEngine(ScriptedEngine):
    def __init__(self, fate: Fate) -> None:
        super().__init__()
        self._fate = fate

    async def generate(self, request):
        self._fate.comes("sampling")
        return await super().generate(request)


def mortal_chunks(fate: Fate):
    whole = chat.chunks

    def chunks(*args, **more):
        """hypercorn sends what it is given at once, so the second part is asked for when the first is out."""
        for number, body in enumerate(whole(*args, **more)):
            if number == 2:
                fate.comes("streaming")
            yield body

    return chunks


async def main(directory: Path, port: int, fate: Fate) -> None:
    engine = MortalEngine(fate)
    journal = MortalJournal(directory, fate)
    settings = Settings(max_ids=20_000, max_new_tokens=400)
    chat.chunks = mortal_chunks(fate)
    async with engine.running(), serve(
        engine, PlainRenderer(), journal, geometry=GEOMETRY, settings=settings, model="m", port=port
    ):  # fmt: skip
        print("listening", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    place, number, moment, count = (*sys.argv[1:], "never", "1")[:4]
    anyio.run(main, Path(place), int(number), Fate(moment, int(count)), backend="trio")
