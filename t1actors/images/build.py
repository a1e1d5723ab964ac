"""Builds a task's Dockerfile into an image of the store, without a daemon.

Guarantees: every RUN is one layer, made in a namespaces sandbox of its own on what the instructions before it gave (the
task's memory, disk and time; a network only where the caller allows one, and the layer says so), and kept under a key of that
state, its command and its variables, so that it runs once; a COPY's layer is its own key. The same Dockerfile, files and
layers give the same digest. A build that fails leaves no image. ``BuildFailed`` is the task's own doing; a host that makes no
sandboxes raises ``SandboxUnavailable``.

Left to others: what the file says (``tasks.dockerfile``), where files go (``images.copy``), RUN (``images.steps``).
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from t1actors.images.copy import CopyWriter, Origin
from t1actors.images.errors import BuildFailed, ImageError, ImageMissing, ImageRefused
from t1actors.images.ignore import Ignored
from t1actors.images.image import Config, Image, RootFs, this_architecture
from t1actors.images.sources import Progress, no_progress
from t1actors.images.steps import NO_NETWORK, Base, BuildLimits, BuildNetwork, Steps
from t1actors.images.store import ImageStore
from t1actors.images.tree import Tree
from t1actors.nursery import apart
from t1actors.sandbox.errors import SandboxRefused
from t1actors.sandbox.layer_tar import LayerWriter
from t1actors.tasks.dockerfile import copy_words, run_words
from t1actors.tasks.dockerwords import expand
from t1actors.tasks.recipe import Instruction, Recipe, Stage, arguments, pairs
from t1actors.tasks.task import Task, TaskError

T = TypeVar("T")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SCRATCH = "scratch"


@dataclass(frozen=True)
class Built:
    """``ran`` of the ``steps`` were not kept from before."""

    digest: str
    image: Image
    steps: int
    ran: int


@dataclass(frozen=True)
class _State:
    """What a stage is after an instruction. ``layers`` from the lowest up."""

    layers: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"
    cmd: tuple[str, ...] = ()
    stands_in_for: str = ""


def limits_of(task: Task) -> BuildLimits:
    """What the task allows its build, and the defaults where it says nothing."""
    usual = BuildLimits()
    return BuildLimits(task.build_timeout_s, task.memory_mb or usual.memory_mb, task.storage_mb or usual.disk_mb)


def missing_images(store: ImageStore, recipe: Recipe) -> list[str]:
    """The images that the recipe's stages are built from and the store lacks. Raises ``TaskError``."""
    outer: dict[str, str] = {}
    names: set[str] = set()
    found: list[str] = []
    try:
        for argument in recipe.arguments:
            outer.update((name, value) for name, value in arguments(argument.text, outer, {}) if value is not None)
        for stage in recipe.stages:
            base = expand(stage.base, outer)
            if base.lower() not in names | {_SCRATCH} and base not in found and store.resolve(base) is None:
                found.append(base)
            names.add(stage.name)
    except ValueError as error:
        raise TaskError(f"{recipe.file}: {error}") from error
    return found


async def build_task(
    store: ImageStore,
    task: Task,
    *,
    host_base: bool,
    network: BuildNetwork = NO_NETWORK,
    progress: Progress | None = None,
) -> Built:
    """The image of the task's environment. ``host_base``: the host's own /usr stands in for every image it is built from;
    ``network``: what RUN has of one.

    Raises:
        BuildFailed: the task's own fault.
        ImageMissing: it is built from an image that is not in the store.
        SandboxUnavailable: no sandbox can be made here.
    """
    recipe = task.environment.recipe
    if recipe is None:
        raise TaskError(f"task {task.name}: nothing says how its environment is built")
    directory = task.path / "environment"
    return await build(
        store, recipe, directory, limits=limits_of(task), host_base=host_base, network=network, progress=progress
    )


async def build(
    store: ImageStore,
    recipe: Recipe,
    directory: Path,
    *,
    limits: BuildLimits,
    host_base: bool,
    network: BuildNetwork = NO_NETWORK,
    progress: Progress | None = None,
) -> Built:
    """As ``build_task``, of any recipe; ``directory`` is where its COPYs find files."""
    with store.adding() as place:
        async with AsyncExitStack() as stack:
            steps = Steps(place, limits, network, stack)
            build = _Build(store, recipe, directory, place, steps, network, host_base, progress or no_progress)
            state = await build.stage(len(recipe.stages) - 1)
        config = Config(
            Env=tuple(f"{name}={value}" for name, value in state.env.items()),
            WorkingDir=state.workdir,
            Cmd=state.cmd or None,
        )
        image = Image(
            architecture=this_architecture(),
            config=config,
            rootfs=RootFs(diff_ids=state.layers),
            t1_stands_in_for=state.stands_in_for,
        )
        digest = await _in_thread(partial(store.add_image, image, where=recipe.file))
    return Built(digest, image, build.done, build.ran)


async def _in_thread(work: Callable[[], T]) -> T:
    """No cancellation leaves the thread behind."""
    return await apart(lambda: anyio.to_thread.run_sync(work))


class _Build:
    """One build: ``stage`` makes a stage and those it needs, each once."""

    def __init__(
        self,
        store: ImageStore,
        recipe: Recipe,
        directory: Path,
        place: Path,
        steps: Steps,
        network: BuildNetwork,
        host_base: bool,
        progress: Progress,
    ) -> None:
        self._store = store
        self._recipe = recipe
        self._directory = directory
        self._place = place
        self._host_base = host_base
        self._progress = progress
        self._steps = steps
        self._network = network
        self._made: dict[int, _State] = {}
        self._total = sum(len(stage.instructions) for stage in recipe.stages)
        self.done = 0
        self.ran = 0
        platform = f"linux/{this_architecture()}"
        self._outer = {"TARGETPLATFORM": platform, "BUILDPLATFORM": platform, "TARGETOS": "linux", "BUILDOS": "linux"}
        self._outer |= {"TARGETARCH": this_architecture(), "BUILDARCH": this_architecture()}
        for argument in recipe.arguments:
            declared = self._checked(argument, lambda a=argument: arguments(a.text, self._outer, {}))
            self._outer.update((name, value) for name, value in declared if value is not None)

    async def stage(self, number: int) -> _State:
        """What the stage is at its end."""
        if number not in self._made:
            stage = self._recipe.stages[number]
            state = await self._base(number, stage)
            values: dict[str, str] = {}
            for instruction in stage.instructions:
                self._progress(self.done, self._total, str(instruction).splitlines()[0])
                state = await self._do(state, instruction, values)
                self.done += 1
            self._made[number] = state
        return self._made[number]

    # --- FROM ---------------------------------------------------------------------------------------------------------

    async def _base(self, number: int, stage: Stage) -> _State:
        name = expand(stage.base, self._outer)
        if not name:
            raise BuildFailed(f"{self._recipe.file}, line {stage.line}: FROM {stage.base} names no image")
        earlier = self._earlier(name, number)
        if earlier is not None:
            return await self.stage(earlier)
        state = self._image(name, f"{self._recipe.file}, line {stage.line}: FROM {name}")
        return replace(state, env={"PATH": PATH, **state.env})

    def _earlier(self, name: str, before: int) -> int | None:
        for number in reversed(range(before)):
            if self._recipe.stages[number].name == name.lower():
                return number
        return None

    def _image(self, name: str, place: str) -> _State:
        if name == _SCRATCH:
            return _State()
        if self._host_base:
            return _State(stands_in_for=name)
        digest = self._store.resolve(name)
        if digest is None:
            raise ImageMissing(
                f"{place}: this image is not in {self._store.root}; `t1 image import {name} SOURCE` imports it; SOURCE is a "
                f"docker save tar, an OCI layout, a root file system's directory, or docker://{name}"
            )
        image = self._store.image(digest)
        return _State(image.layers, dict(image.env), image.workdir, image.config.Cmd or (), image.t1_stands_in_for)

    # --- instructions -------------------------------------------------------------------------------------------------

    async def _do(self, state: _State, instruction: Instruction, values: dict[str, str]) -> _State:
        known = {**values, **state.env}
        checked = partial(self._checked, instruction)
        match instruction.word:
            case "ARG":
                declared = checked(lambda: arguments(instruction.text, known, self._outer))
                values.update((name, value) for name, value in declared if value is not None)
                return state
            case "ENV":
                return replace(state, env={**state.env, **dict(checked(lambda: pairs(instruction.text, known)))})
            case "CMD":
                return replace(state, cmd=tuple(checked(lambda: run_words(instruction))))
            case "WORKDIR":
                path = posixpath.join(state.workdir, checked(lambda: expand(instruction.text, known)))
                state = replace(state, workdir=posixpath.normpath(path))
                return await self._layered(state, instruction, lambda writer: writer.directory(state.workdir))
            case "COPY":
                return await self._copy(state, instruction, known)
            case "RUN":
                return await self._run(state, instruction, known)

    def _place_of(self, instruction: Instruction) -> str:
        return f"{self._recipe.file}, line {instruction.line}: {str(instruction).splitlines()[0]}"

    def _checked(self, instruction: Instruction, read: Callable[[], T]) -> T:
        try:
            return read()
        except ValueError as error:
            raise BuildFailed(f"{self._place_of(instruction)}: {error}", step=str(instruction)) from error

    def _tree(self, state: _State) -> Tree:
        paths = [self._store.layer_path(layer) for layer in reversed(state.layers)]
        return Tree(paths, on_host=bool(state.stands_in_for))

    async def _copy(self, state: _State, instruction: Instruction, known: dict[str, str]) -> _State:
        flags = dict(instruction.flags)
        words = self._checked(instruction, lambda: [expand(word, known) for word in copy_words(instruction)])
        *sources, target = words
        origin = await self._origin(instruction, expand(flags.get("from", ""), known))
        mode = int(flags["chmod"], 8) if "chmod" in flags else None
        into = target.endswith("/") or target in (".", "..") or len(sources) > 1
        documents = {f"<<{document.name}": document for document in instruction.heredocs}
        at = posixpath.join(state.workdir, target)

        def write(writer: CopyWriter) -> bool:
            for source in sources:
                document = documents.get(re.sub("""[-"']""", "", source))
                if document is not None:
                    text = document.text if document.literal else _expand_document(document.text, known)
                    writer.document(text.encode(), at, document.name, into=into, mode=mode)
                elif not writer.copy(origin, source, at, into=into, mode=mode):
                    raise BuildFailed(f"{source}: nothing of that name is in {origin.name}")
            return True

        return await self._layered(state, instruction, write)

    async def _origin(self, instruction: Instruction, name: str) -> Origin:
        if not name:
            ignored = Ignored.of(self._directory)
            return Origin(Tree([self._directory], on_host=False), str(self._directory), ignored.hides)
        stages = self._recipe.stages
        current = max(number for number, stage in enumerate(stages) if stage.line < instruction.line)
        earlier = int(name) if name.isdigit() and int(name) < current else self._earlier(name, current)
        state = self._image(name, self._place_of(instruction)) if earlier is None else await self.stage(earlier)
        return Origin(self._tree(state), name, keeps_owners=True)

    async def _layered(self, state: _State, instruction: Instruction, write: Callable[[CopyWriter], bool]) -> _State:
        """The state with a layer more, if ``write`` writes one."""
        file = self._place / f"{uuid.uuid4().hex}.tar"

        def work() -> str | None:
            with file.open("xb") as out:
                writer = LayerWriter(out, max_bytes=self._store.max_layer_bytes)
                written = write(CopyWriter(self._tree(state), writer))
                writer.close()
            return self._keep(file, instruction) if written else None

        try:
            layer = await _in_thread(work)
        except (ImageError, SandboxRefused) as error:
            raise BuildFailed(f"{self._place_of(instruction)}: {error}", step=str(instruction)) from error
        return replace(state, layers=(*state.layers, layer)) if layer is not None else state

    def _keep(self, file: Path, instruction: Instruction, *, network: bool = False) -> str:
        with file.open("rb") as stream:
            digest = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
            if not self._store.has_layer(digest):
                stream.seek(0)
                self._store.add_layer(stream, where=self._place_of(instruction), expect=digest, network=network)
        file.unlink()
        return digest

    # --- RUN ----------------------------------------------------------------------------------------------------------

    async def _run(self, state: _State, instruction: Instruction, known: dict[str, str]) -> _State:
        argv = self._checked(instruction, lambda: run_words(instruction))
        key = _step_key(state, argv, known)
        layer = self._store.step(key)
        if layer is None:
            layers = [self._store.layer_path(layer) for layer in reversed(state.layers)]
            stage = Base(tuple(map(str, layers)), on_host=bool(state.stands_in_for), workdir=state.workdir)
            place = self._place_of(instruction)
            file = await self._steps.run(argv, stage, known, place=place, step=str(instruction))
            try:
                layer = await _in_thread(partial(self._keep, file, instruction, network=self._network.on))
            except ImageRefused as error:
                raise BuildFailed(f"{place}: {error}", step=str(instruction)) from error
            await _in_thread(partial(self._store.set_step, key, layer))
            self.ran += 1
        return replace(state, layers=(*state.layers, layer))


def _step_key(state: _State, argv: list[str], known: dict[str, str]) -> str:
    plain = ["t1-run-1", state.layers, bool(state.stands_in_for), state.workdir, argv, sorted(known.items())]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def _expand_document(text: str, known: dict[str, str]) -> str:
    """Variables in a heredoc: its quotes are its own."""
    quoted = re.sub(r"""(["'])""", r"\\\1", text)
    return expand(quoted, known)
