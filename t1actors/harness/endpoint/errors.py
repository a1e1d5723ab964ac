"""What an endpoint says no with: the status and the error body that clients of the OpenAI API know.

Guarantees: every refusal says what, where and what to do; a status that asks clients to come again (429, 503) is used only
where that can help.
"""

from __future__ import annotations

from t1actors.harness.endpoint.form import JsonObject


class EndpointError(Exception):
    """Base of this folder's errors."""


class CallRefused(EndpointError):
    """A request that is not done. ``code`` is for programs, ``param`` names the field, ``retry_after_s``: when to come
    again. Nothing was committed."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> JsonObject:
        """As clients read it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, *, code: str, param: str | None = None) -> CallRefused:
    """400: the request itself is wrong."""
    return CallRefused(400, message, code=code, param=param)


def unavailable(message: str) -> CallRefused:
    """503: nothing is wrong with the request; it may be sent again."""
    return CallRefused(503, message, code="unavailable", retry_after_s=1.0)
