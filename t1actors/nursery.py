"""Two pieces of structured concurrency that anyio leaves to its users, the same under trio and asyncio.

``task_group`` is anyio's, except that a single error leaves as itself: a caller of ``running()`` catches the error it raised,
not a group around it. ``apart`` is for calls that must not be torn: asyncio's own ``task.cancel()`` (a timeout, a task group
that aborts, Ctrl-C) breaks through anyio's shields, and would leave a half-read answer on a pipe or a thread that nobody
waits for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.abc

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncGenerator[anyio.abc.TaskGroup]:
    """As ``anyio.create_task_group``; an error that comes alone is raised bare, several as a group."""
    alone: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        alone = group.exceptions[0]
    if alone is not None:  # outside of the handler, so that the group is not shown as its context
        raise alone


async def apart(call: Callable[[], Awaitable[T]]) -> T:
    """The result of ``call()``, which runs in a task of its own.

    Whatever cancels the caller, and however often, reaches ``call`` as a cancelled scope: its shields and its ``finally``
    blocks run undisturbed and are waited for. The caller may then see the cancellation although ``call`` returned: what has
    to be undone in that case is the caller's to undo.
    """
    results: list[T] = []

    async def run() -> None:
        results.append(await call())

    async with task_group() as tasks:
        tasks.start_soon(run)
    return results[0]
