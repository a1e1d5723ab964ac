"""Builds tasks' images by a Docker daemon, with its own cache, from a context that is made here (``images.context``).

An image is named by its id. What is built carries a tag of what it was built from: the instructions, the files and the ids
of the images below, so that it is built once, whoever asks, and again when one of them changed. Guarantees: a RUN has no
network unless the run allows one (the daemon's own then), the task's memory and what is left of its time; a build that is
cancelled or out of time is ended, and its containers removed; nothing is pulled unless the run allows it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import partial
from typing import cast
from urllib.parse import quote, urlencode

import anyio
import anyio.to_thread

from t1actors.images.build import limits_of
from t1actors.images.context import Rendered, Step, pack, render
from t1actors.images.errors import BuildFailed, ImageMissing, RegistryError
from t1actors.images.steps import SHOWN_CHARS, wants_a_network
from t1actors.sandbox.docker.daemon import AWAY_S, Daemon, DaemonFailed, request, socket_path
from t1actors.sandbox.docker.recipe import LABEL_STANDS_IN
from t1actors.sandbox.docker.reconcile import FIX_DOCKER
from t1actors.sandbox.docker.stream import Record, hear
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.tasks.recipe import Recipe
from t1actors.tasks.task import Task, TaskError

TAG = "t1-environment"
_STEP = re.compile(r"Step (\d+)/\d+ : ")
_NOISE = re.compile(r" ---> |Removing intermediate container |Removed intermediate container ")
_RED = re.compile(r"\x1b\[91m|\x1b\[0m")
"""What the builder puts around what came by stderr."""
_LONGEST_PULL_S = 1800.0


@dataclass(frozen=True)
class DaemonBuilder:
    """The daemon at ``socket``. ``stand_in``: an image that stands in for every image a task names; empty: none does.
    ``pull``: images that are not there may be pulled. ``network``: RUN instructions have the daemon's own."""

    socket: str
    stand_in: str = ""
    pull: bool = False
    network: bool = False

    async def image_of(self, task: Task) -> str:
        recipe = task.environment.recipe
        if recipe is None:
            raise TaskError(f"task {task.name}: nothing says how its environment is built")
        rendered = render(recipe, stand_in=self.stand_in)
        bases = [await self._base(base, recipe) for base in rendered.bases]
        if rendered.is_an_image and bases:
            return bases[0]
        context = await anyio.to_thread.run_sync(partial(pack, rendered, task.path / "environment"))
        tag = f"{TAG}:{_key(rendered, context, bases)}"
        return await self._image_id(tag) or await self._build(task, rendered, context, tag)

    async def has(self, image: str) -> bool:
        return await self._image_id(image) is not None

    def lacking(self, recipe: Recipe) -> list[str]:
        try:
            bases = render(recipe, stand_in=self.stand_in).bases
        except BuildFailed as error:
            raise TaskError(str(error)) from error
        try:
            return [] if self.pull else [self._how(base) for base in bases if _find(self.socket, base, 0.0) is None]
        except DaemonFailed as error:
            raise TaskError(f"{error.step}: {error.reason}") from error

    # --- parts --------------------------------------------------------------------------------------------------------

    def _how(self, image: str) -> str:
        if self.stand_in:
            return f"{image} (sandbox.docker.image) is not in the Docker daemon at {self.socket}"
        return (
            f"{image} is not in the Docker daemon at {self.socket}: `docker pull {image}`, or let the run pull it with --set "
            "sandbox.docker.pull=true, or let sandbox.docker.image stand in with --set sandbox.host_base=true"
        )

    async def _image_id(self, name: str) -> str | None:
        try:
            return await anyio.to_thread.run_sync(_find, self.socket, name, AWAY_S)
        except DaemonFailed as error:
            raise _unavailable(error) from error

    async def _base(self, image: str, recipe: Recipe) -> str:
        found = await self._image_id(image)
        if found is None and self.pull and not self.stand_in:
            await self._pull(image)
            found = await self._image_id(image)
        if found is None:
            raise ImageMissing(f"{recipe.file}: the image {self._how(image)}")
        return found

    async def _pull(self, image: str) -> None:
        step = f"pulling {image}"
        tagged = "@" in image or ":" in image.rpartition("/")[2]
        what = urlencode({"fromImage": image} if tagged else {"fromImage": image, "tag": "latest"})
        failed: list[str] = []

        def heard(record: Record) -> None:
            failed.extend([str(record["error"])] if "error" in record else [])

        try:
            with anyio.fail_after(_LONGEST_PULL_S):
                await hear(self.socket, step, request("POST", f"/images/create?{what}", b""), heard)
        except TimeoutError as error:
            raise RegistryError(f"{step}: not there within {_LONGEST_PULL_S:g} s") from error
        except DaemonFailed as error:
            if error.status == 0:
                raise _unavailable(error) from error
            raise (ImageMissing if error.status == 404 else RegistryError)(f"{step}: {error.reason}") from error
        if failed:
            raise RegistryError(f"{step}: {failed[-1]}")

    async def _build(self, task: Task, rendered: Rendered, context: bytes, tag: str) -> str:
        limits = limits_of(task)
        memory_bytes = limits.memory_mb << 20
        labels = {LABEL_STANDS_IN: ", ".join(rendered.named)} if self.stand_in else {}
        options = {
            "t": tag,
            "networkmode": "default" if self.network else "none",
            "memory": memory_bytes,
            "memswap": memory_bytes,
            "rm": 1,
            "forcerm": 1,
            "labels": json.dumps(labels),
        }
        step = f"building the image of task {task.name}"
        what = f"/build?{urlencode(options, quote_via=quote)}"
        said = _Said(rendered, network=self.network)
        try:
            with anyio.fail_after(limits.deadline_s):
                await hear(self.socket, step, request("POST", what, context, "application/x-tar"), said.hear)
        except TimeoutError as error:
            raise said.failure(
                f"not done within the {limits.deadline_s:g} s that environment.build_timeout_sec allows"
            ) from error
        except DaemonFailed as error:
            if error.status == 0:
                raise _unavailable(error) from error
            raise BuildFailed(f"{rendered.steps[0].place}: {error.reason}") from error
        said.check()
        found = await self._image_id(tag)
        if found is None:
            raise BuildFailed(f"{rendered.steps[-1].place}: built, and the daemon has no image {tag}")
        return found


class _Said:
    """What the daemon says of a build, as far as errors tell of it."""

    def __init__(self, rendered: Rendered, *, network: bool) -> None:
        self._network = network
        self._steps = rendered.steps
        self._step: Step | None = None
        self._output = ""
        self._error = ""

    def hear(self, record: Record) -> None:
        text = _RED.sub("", str(record.get("stream", "")))
        if match := _STEP.match(text):
            number = int(match[1])
            self._step = self._steps[number - 1] if number <= len(self._steps) else self._step
            self._output = ""
        elif text and not _NOISE.match(text):
            self._output = (self._output + text)[-SHOWN_CHARS:]
        if "error" in record:
            detail = record.get("errorDetail")
            code = cast("dict[str, object]", detail).get("code") if isinstance(detail, dict) else None
            self._error = str(record["error"]) if code is None else f"exit status {code}"

    def check(self) -> None:
        """Raises ``BuildFailed`` if the daemon said that it failed."""
        if self._error:
            raise self.failure(self._error)

    def failure(self, reason: str) -> BuildFailed:
        step = self._step or self._steps[0]
        said = self._output.strip()
        text = f"{step.place}: {'; '.join([reason, *wants_a_network(said, on=self._network)])}"
        return BuildFailed(f"{text}\n{said}" if said else text, step=step.text, output=said)


def _find(socket: str, image: str, away_s: float) -> str | None:
    """The id of the daemon's image of that name or id; None if it has none. Raises ``DaemonFailed``."""
    try:
        found = Daemon(socket_path(socket)).ask(
            f"finding the image {image}", "GET", f"/images/{quote(image)}/json", away_s=away_s
        )
    except DaemonFailed as error:
        if error.status != 404:
            raise
        return None
    return str(found["Id"])


def _key(rendered: Rendered, context: bytes, bases: list[str]) -> str:
    """Docker's tags have at most 128 characters."""
    plain = ["t1-environment-1", rendered.named, bases]
    return hashlib.sha256(json.dumps(plain).encode() + context).hexdigest()


def _unavailable(error: DaemonFailed) -> SandboxUnavailable:
    return SandboxUnavailable(error.step, error.reason, FIX_DOCKER)
