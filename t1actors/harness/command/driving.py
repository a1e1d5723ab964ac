"""One trial while its program runs: its session of the endpoint, its sandbox, and why the program is to be ended.

Guarantees: everything that a program's calls come to is in the log before they are answered. The program's next start is
served by another ``Driving``, made of what the log says, and ``close`` returns only when nothing of this one can be committed
any more: so a program that is started again, and calls as before, is answered as before.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from t1actors.engine.interface import Engine
from t1actors.events import AnyEvent, SessionOpened, TurnSampled
from t1actors.harness.command.commands import Commands
from t1actors.harness.command.hands import AskedCommand
from t1actors.harness.command.told_journal import ToldJournal
from t1actors.harness.endpoint.core import EndpointCore
from t1actors.harness.endpoint.errors import CallRefused, bad_request
from t1actors.harness.endpoint.form import Answered, Call
from t1actors.harness.endpoint.http import admit, application, body_of
from t1actors.harness.endpoint.reading import which
from t1actors.harness.endpoint.settings import Settings
from t1actors.payloads import Blobs
from t1actors.tito.record import Geometry
from t1actors.tito.render.interface import Renderer

MODEL = "t1"
"""What programs call the model."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A trial as the log has it. ``calls``, ``commands`` and ``shown`` grow with it."""

    trial: str
    task: str
    calls: Sequence[TurnSampled]
    commands: Sequence[str]
    shown: Mapping[int, str]


class Driving:
    """See the module. ``over`` is set when the program has to be ended: ``full``, its trial has all the turns it may have,
    or ``diverged``. ``refused``: the code of the last call that was refused."""

    def __init__(
        self,
        known: Known,
        *,
        engine: Engine,
        renderer: Renderer,
        geometry: Geometry,
        settings: Settings,
        blobs: Blobs,
        tell: Callable[[Sequence[AnyEvent]], Awaitable[bool]],
        ask: Callable[[int, str], Awaitable[bool]],
    ) -> None:
        """``tell`` is ``runtime.actor.Performing.tell``, by which turns are made durable; ``ask`` that of ``Commands``."""
        self.token = secrets.token_urlsafe(24)
        self.over = anyio.Event()
        self.full = False
        self.refused = ""
        self._trial = known.trial
        self.commands = Commands(known.trial, known.commands, known.shown, ask, self.over.set)
        opened = SessionOpened(trial=known.trial, number=0, task=known.task, temperature=settings.temperature)
        self._core = _Watched(
            engine,
            renderer,
            ToldJournal(blobs, [opened, *known.calls], tell),
            geometry=geometry,
            settings=settings,
            volatile_routing=True,
        )
        self._core.watcher = self
        sandbox = Route("/sessions/{name}/sandbox", self._sandbox, methods=["POST"])
        self.app: ASGIApp = application(self._core, model=MODEL, token=self.token, reports=False, more=[sandbox])

    def restore(self) -> None:
        """Take up what the log has. Blocks. Raises ``BlobError``."""
        self._core.restore()
        self._core.session(self._trial).begin_again()

    async def close(self) -> None:
        """Answer nobody any more."""
        self.commands.close()
        await self._core.leave(self._trial)

    @property
    def diverged(self) -> str:
        """How the program, started again, left what it had done before; empty where it did not."""
        return self.commands.diverged

    def note_refusal(self, refused: CallRefused) -> None:
        """The program was told no."""
        self.refused = refused.code
        if refused.code == "too_many_turns":
            self.full = True
            self.over.set()

    async def _sandbox(self, request: Request) -> Response:
        admit(request, self.token)
        asked = which(await body_of(request, self._core.settings.max_body_bytes), AskedCommand)
        if asked.limit_s is not None and not asked.limit_s > 0:
            raise bad_request(f"limit_s = {asked.limit_s}: above 0", code="invalid_value", param="limit_s")
        return Response(await self.commands.run(asked.text()), media_type="application/json")


class _Watched(EndpointCore):
    """Tells what it refuses."""

    watcher: Driving

    async def call(self, name: str, call: Call) -> Answered:
        try:
            answered = await super().call(name, call)
        except CallRefused as refused:
            self.watcher.note_refusal(refused)
            raise
        self.watcher.refused = ""
        return answered
