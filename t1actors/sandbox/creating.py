"""One creation, tried again where infrastructure failed it: the loop that the pool and grading share.

Guarantees: at most as many tries as the policy allows, each within the deadline; every one that is followed by another is
said; when this raises or is cancelled the backend has left no sandbox. Which faults are worth another try: ``retries``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from t1actors.sandbox.errors import SandboxError
from t1actors.sandbox.interface import Created, SandboxBackend, SandboxSpec
from t1actors.sandbox.retries import Retry, RetryPolicy


async def create_with_retries(
    backend: SandboxBackend,
    spec: SandboxSpec,
    retries: RetryPolicy,
    *,
    deadline_s: float | None,
    on_retry: Callable[[Retry], object],
    admitted: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint,
) -> Created:
    """The sandbox of ``spec``. ``admitted`` is awaited before every try but the first.

    Raises:
        TimeoutError: not created within ``deadline_s``, not once.
        SandboxError: the last try's.
    """
    attempt = 1
    while True:
        try:
            with anyio.fail_after(deadline_s):
                return await backend.create(spec)
        except (SandboxError, TimeoutError) as error:
            retry = retries.after(error, spec.key, attempt)
            if retry is None:
                raise
        attempt += 1
        on_retry(retry)
        await anyio.sleep(retry.pause_s)
        await admitted()
