"""The endpoint's HTTP face: an ASGI application over ``core.EndpointCore``.

    POST   /sessions/NAME/v1/chat/completions     a turn; also /v1/chat/completions with the header X-Session-Id: NAME
    POST   /sessions/NAME/v1/responses            a turn, by the other API
    GET    /v1/models, /sessions/NAME/v1/models   the one model
    POST   /sessions/NAME                         opens it before its first call: {"task": ..., "temperature": ...}
    GET    /sessions/NAME                         what it holds
    POST   /sessions/NAME/reward                  {"reward": 0.5}: once; it closes the session
    DELETE /sessions/NAME                         closes it
    GET    /health                                needs no token

Guarantees: an answer leaves only when its turn is committed, streamed or not, so a stream never breaks off for a reason
of the endpoint's; a client that hangs up before that abandons the call; every refusal is a JSON error body; a request is read
up to the limit and no further.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import chain

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from t1actors.harness.endpoint import chat, responses
from t1actors.harness.endpoint.core import EndpointCore
from t1actors.harness.endpoint.errors import CallRefused, bad_request
from t1actors.harness.endpoint.form import Answered, Call, JsonObject
from t1actors.harness.endpoint.reading import which
from t1actors.harness.endpoint.sessions import Session
from t1actors.nursery import task_group

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_encode = msgspec.json.Encoder().encode
CLIENT_GONE = 499
"""The status of an answer that nobody reads."""


class _Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    task: str = ""
    temperature: float | None = None


class _Reward(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reward: float


def application(
    core: EndpointCore,
    *,
    model: str,
    token: str | None = None,
    now_s: Callable[[], float] = time.time,
    reports: bool = True,
    more: Sequence[Route] = (),
) -> ASGIApp:
    """The application. ``model``: the name that calls may use; ``token``: what clients show, as a bearer. ``reports``:
    clients open and close sessions, and report rewards; without it they only call and look. ``more``: what else is served."""
    face = _Face(core, model, token, now_s)
    posted = ["POST"]
    routes = [
        Route("/health", face.health),
        Route("/v1/models", face.models),
        Route("/v1/chat/completions", face.chat, methods=posted),
        Route("/v1/responses", face.responses, methods=posted),
        Route("/sessions", face.sessions),
        Route("/sessions/{name}", face.session, methods=["GET", "POST", "DELETE"] if reports else ["GET"]),
        Route("/sessions/{name}/v1/models", face.models),
        Route("/sessions/{name}/v1/chat/completions", face.chat, methods=posted),
        Route("/sessions/{name}/v1/responses", face.responses, methods=posted),
        *more,
    ]
    if reports:
        routes.append(Route("/sessions/{name}/reward", face.reward, methods=posted))
    return Starlette(routes=routes, exception_handlers={CallRefused: _refusal, HTTPException: _no_such_place})


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, CallRefused)
    headers = {} if error.retry_after_s is None else {"retry-after": f"{error.retry_after_s:g}"}
    return _json(error.body(), status=error.status, headers=headers)


async def _no_such_place(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refused = CallRefused(
        error.status_code, f"{request.method} {request.url.path}: {error.detail}; docs/endpoint.md lists what there is",
        code="not_found",
    )  # fmt: skip
    return _json(refused.body(), status=error.status_code, headers=dict(error.headers or {}))


def _json(body: JsonObject | list[JsonObject], *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encode(body), status_code=status, headers=headers, media_type="application/json")


class _Face:
    def __init__(self, core: EndpointCore, model: str, token: str | None, now_s: Callable[[], float]) -> None:
        self._core = core
        self._model = model
        self._token = token
        self._now_s = now_s

    async def health(self, _: Request) -> Response:
        failed = self._core.failed
        body: JsonObject = {
            "status": "failed" if failed else "ok",
            "detail": failed,
            "sessions": len(self._core.sessions()),
            "calls": self._core.live_calls,
        }
        return _json(body, status=503 if failed else 200)

    async def models(self, request: Request) -> Response:
        self._admit(request)
        return _json(
            {"object": "list", "data": [{"id": self._model, "object": "model", "created": 0, "owned_by": "t1"}]}
        )

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def sessions(self, request: Request) -> Response:
        self._admit(request)
        return _json({"sessions": [_shown(session) for session in self._core.sessions()]})

    async def session(self, request: Request) -> Response:
        self._admit(request)
        name = _session_name(request)
        match request.method:
            case "POST":
                opening = which(await self._body(request) or b"{}", _Opening)
                return _json(_shown(await self._core.open(name, task=opening.task, temperature=opening.temperature)))
            case "DELETE":
                await self._core.close(name)
            case _:
                pass
        return _json(_shown(self._core.session(name)))

    async def reward(self, request: Request) -> Response:
        self._admit(request)
        name = _session_name(request)
        await self._core.reward(name, which(await self._body(request), _Reward).reward)
        return _json(_shown(self._core.session(name)))

    # --- calls --------------------------------------------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        self._admit(request)
        name = _session_name(request)
        asked = chat.read_call(await self._body(request), request_id=_request_id(request), is_retry=_is_retry(request))
        self._check_model(asked.model)
        answered = await self._answered(request, name, asked.call)
        if answered is None:
            return Response(status_code=CLIENT_GONE)
        created_s = int(self._now_s())
        if asked.stream:
            bodies = chain(chat.chunks(answered, asked, created_s=created_s), ["[DONE]"])
            return _events((None, body) for body in bodies)
        return _json(chat.whole(answered, asked, created_s=created_s))

    async def responses(self, request: Request) -> Response:
        self._admit(request)
        name = _session_name(request)
        asked = responses.read_call(
            await self._body(request), request_id=_request_id(request), is_retry=_is_retry(request)
        )
        self._check_model(asked.model)
        answered = await self._answered(request, name, asked.call)
        if answered is None:
            return Response(status_code=CLIENT_GONE)
        created_s = int(self._now_s())
        if asked.stream:
            return _events((body["type"], body) for body in responses.events(answered, asked, created_s=created_s))
        return _json(responses.whole(answered, asked, created_s=created_s))

    async def _answered(self, request: Request, name: str, call: Call) -> Answered | None:
        """None: the client hung up, and its call was abandoned unless it was being committed already."""
        found: list[Answered] = []
        async with task_group() as tasks:
            tasks.start_soon(_until_gone, request, tasks.cancel_scope.cancel)
            found.append(await self._core.call(name, call))
            tasks.cancel_scope.cancel()
        return found[0] if found else None

    # --- what all requests share --------------------------------------------------------------------------------------

    def _admit(self, request: Request) -> None:
        admit(request, self._token)

    async def _body(self, request: Request) -> bytes:
        return await body_of(request, self._core.settings.max_body_bytes)

    def _check_model(self, model: str) -> None:
        if model != self._model:
            raise CallRefused(
                404, f"model {model!r}: the model here is {self._model!r}", code="model_not_found", param="model"
            )


def admit(request: Request, token: str | None) -> None:
    """Raises ``CallRefused`` unless the request shows the token."""
    given = request.headers.get("authorization", "")
    if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise CallRefused(
            401, "the token is missing or wrong: send `Authorization: Bearer TOKEN`", code="invalid_api_key"
        )


async def body_of(request: Request, max_bytes: int) -> bytes:
    """Raises ``CallRefused`` for one that is larger."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise CallRefused(413, f"the body is larger than {max_bytes:,} bytes", code="body_too_large")
    return bytes(body)


async def _until_gone(request: Request, then: Callable[[], None]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    then()


def _session_name(request: Request) -> str:
    in_path, in_header = request.path_params.get("name"), request.headers.get("x-session-id")
    if in_path and in_header and in_path != in_header:
        raise bad_request(f"session {in_path} in the path, {in_header} in X-Session-Id", code="session_ambiguous")
    name = in_path or in_header
    if name is None:
        raise bad_request(
            "no session: a call belongs to a trial, whose turns are trained with its reward. Use the base URL "
            f"{request.base_url}sessions/NAME/v1, or send the header X-Session-Id: NAME",
            code="session_missing",
        )
    if not _NAME.fullmatch(name):
        raise bad_request(
            f"session {name!r}: 1 to 128 letters, digits, dots, dashes, underscores; a letter or digit first",
            code="invalid_session",
        )
    return name


def _request_id(request: Request) -> str:
    return request.headers.get("idempotency-key") or request.headers.get("x-request-id") or ""


def _is_retry(request: Request) -> bool:
    """Clients of OpenAI's count their tries, and send no id with them."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdigit() and int(count) > 0


def _events(events: Iterable[tuple[str | None, JsonObject | str]]) -> Response:
    """Server-sent events, all of them known."""

    async def pieces() -> AsyncIterator[bytes]:
        for name, body in events:
            head = b"" if name is None else f"event: {name}\n".encode()
            yield head + b"data: " + (body.encode() if isinstance(body, str) else _encode(body)) + b"\n\n"

    return StreamingResponse(pieces(), media_type="text/event-stream", headers={"cache-control": "no-cache"})


def _shown(session: Session) -> JsonObject:
    graph = session.graph
    return {
        "session": session.name,
        "task": session.task,
        "temperature": session.temperature,
        "turns": len(graph.nodes),
        "chunks": sum(not graph.children(node.number) for node in graph.nodes),
        "joins": graph.joins(),
        "broken_calls": session.broken_calls,
        "foreign_calls": session.foreign_calls,
        "sampled_ids": sum(len(node.turn.sampled_ids) for node in graph.nodes),
        "reward": session.reward,
        "closed": session.closed,
    }
