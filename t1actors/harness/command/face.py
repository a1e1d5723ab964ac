"""What the programs of one sampler call: one port, and behind it what each trial serves while its program runs."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send


class Face:
    """An ASGI application. ``trials``: what answers ``/sessions/TRIAL/...``; a trial that is not there is a 404."""

    def __init__(self) -> None:
        self.trials: dict[str, ASGIApp] = {}
        self._nobody = Starlette()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        app: ASGIApp = self._nobody
        if scope["type"] == "http":
            _, _, rest = str(scope["path"]).partition("/sessions/")
            app = self.trials.get(rest.partition("/")[0], self._nobody)
        await app(scope, receive, send)
