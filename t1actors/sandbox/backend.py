"""Backends whose sandboxes are kept by shims, and the embedded one: Linux namespaces, no daemon and nothing to download.

``ShimBackend`` holds no state that matters: a sandbox is a directory under ``root`` with its shim's socket in it, so a new
backend on the same root finds every sandbox that lives. ``NamespaceBackend`` is the embedded kind, ``sandbox.docker`` has
another. All the work is in the shims (``shim.server``); here orders become messages. The fork server runs while the context
is open; the sandboxes outlive it, each for its lease.

Guarantees: a cancelled or failed ``create`` that started a sandbox leaves none; runs under trio and asyncio alike, also when
asyncio cancels a caller its own way (``t1actors.nursery.apart``). One event loop drives a backend; it is not thread-safe.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
from anyio import to_thread

from t1actors.config import fault_of_block
from t1actors.events import Isolation, OutputChunk
from t1actors.nursery import apart
from t1actors.sandbox import errors
from t1actors.sandbox.errors import SandboxDied, SandboxError, SandboxGone, SandboxRefused, SandboxUnavailable
from t1actors.sandbox.fork_server import ForkServer, ShimKind
from t1actors.sandbox.interface import (
    HOST,
    BaseImage,
    BaseImages,
    Created,
    Leftover,
    RunRequest,
    RunResult,
    SandboxSpec,
)
from t1actors.sandbox.observation import plain_text
from t1actors.sandbox.reaper import reap
from t1actors.sandbox.remedies import fix_of_namespaces
from t1actors.sandbox.shim.users import is_root_of_the_host
from t1actors.sandbox.wire import (
    INTERNET,
    MAX_NAME_BYTES,
    NO_NETWORK,
    Answer,
    Commit,
    Create,
    Done,
    Failed,
    Inbox,
    Kill,
    Made,
    Order,
    Ran,
    ReadFile,
    Renew,
    Run,
    Seal,
    encode,
    group_prefix,
    key_of,
    name_of,
)

MAX_COMMAND_BYTES = 4 << 20
_RECEIVE_BYTES = 1 << 18
_KILL_PATIENCE_S = 30.0


class ShimBackend:
    """See the module. Use inside ``async with backend.running():``."""

    def __init__(self, root: Path, *, name: str, kind: ShimKind) -> None:
        """
        Args:
            root: the directory of this backend's sandboxes; made if missing. Every backend needs one of its own.
            name: what to call this backend in errors.
            kind: what makes the sandboxes.
        """
        self.root = root.absolute()
        self.name = name
        self.prefix = group_prefix(str(self.root))
        """Begins the names of all that this root's sandboxes have outside it, and of no other's."""
        self._kind = kind
        self._root_fd = -1
        self._fork_server: ForkServer | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[ShimBackend]:
        """Raises ``SandboxUnavailable`` where no sandbox can be made for a reason that is known beforehand."""
        if self.root.resolve().is_relative_to("/usr"):
            text = f"{self.root} lies under /usr, which every sandbox can read"
            raise SandboxUnavailable("choosing a directory for sandboxes", text, "Choose one elsewhere")
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root_fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            async with ForkServer(self.root, self.prefix, self._kind) as self._fork_server:
                yield self
        finally:
            self._fork_server = None
            os.close(self._root_fd)
            self._root_fd = -1

    async def create(self, spec: SandboxSpec) -> Created:
        _check_spec(spec)
        base = self._base(spec)
        forked: list[str] = []
        finished = False
        try:
            created = await apart(lambda: self._create(spec, base, forked))
            finished = True
        finally:
            if forked and not finished:  # cancelled or refused: whoever asked will not come back for it
                await apart(lambda: self._give_up(spec.key))
        return created

    async def _create(self, spec: SandboxSpec, base: BaseImage, forked: list[str]) -> Created:
        """Notes in ``forked`` that a new shim was started, which no cancellation comes between."""
        name = self._name_of(spec.key)
        started_s = anyio.current_time()
        if await self._server().fork(name):
            forked.append(name)
        forked_s = anyio.current_time()
        answer, _ = await self._ask(spec.key, _create_order(spec, base), b"".join(x.archive for x in spec.layers))
        assert isinstance(answer, Made)
        return Created(
            isolation=Isolation(
                backend=self._kind.backend,
                namespaces=tuple(answer.namespaces),
                uid_map=answer.uid_map,
                limits=tuple(answer.limits),
                base=answer.base,
                warnings=(*answer.warnings, *base.warnings),
                network=answer.network,
            ),
            phases={"fork_s": forked_s - started_s, **answer.phases, "create_s": anyio.current_time() - started_s},
            existed=answer.existed,
        )

    async def run(self, sandbox: str, request: RunRequest) -> RunResult:
        size_bytes = len(request.command.encode("utf-8", "replace"))
        if size_bytes > MAX_COMMAND_BYTES:
            text = f"{request.key}: a command of {size_bytes:,} bytes; at most {MAX_COMMAND_BYTES:,} fit"
            raise SandboxRefused(f"sandbox {sandbox}: {text}")
        if not (math.isfinite(request.limit_s) and request.limit_s > 0):
            raise SandboxRefused(f"sandbox {sandbox}: {request.key}: limit_s = {request.limit_s} must be positive")
        answer, _ = await self._ask(sandbox, Run(request.key, request.command, request.limit_s))
        assert isinstance(answer, Ran)
        chunks = tuple(OutputChunk(at_s=at_s, data=text) for at_s, text in answer.chunks)
        return RunResult(
            output=chunks,
            text=plain_text("".join(chunk.data for chunk in chunks)),
            exit_code=answer.exit_code,
            seconds=answer.seconds,
            truncated_bytes=answer.truncated_bytes,
            timed_out=answer.timed_out,
            shell_restarted=answer.shell_restarted,
            limit_hit=",".join(answer.limit_hit),
        )

    async def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes | None:
        answer, data = await self._ask(sandbox, ReadFile(path, max_bytes))
        assert isinstance(answer, Done)
        return data if answer.found else None

    async def seal(self, sandbox: str, *, paths: tuple[str, ...] = ("/",)) -> bytes:
        _, archive = await self._ask(sandbox, Seal(list(paths)))
        return archive

    async def kill(self, sandbox: str) -> None:
        name = self._name_of(sandbox)
        try:
            await self._ask(sandbox, Kill())
        except SandboxGone:
            # Nothing answers. What a shim that was killed from outside left is cleared away.
            if self._exists(name):
                await self._server().clear(name)

    async def list(self) -> list[str]:
        keys: list[str] = []
        for name in sorted(os.listdir(self.root)):
            if not name.startswith(".") and not await self._server().clear(name):
                keys.append(key_of(name))
        return keys

    async def reap(self, *, dry_run: bool = False) -> list[Leftover]:
        return await apart(lambda: to_thread.run_sync(partial(reap, self.root, dry_run=dry_run)))

    async def renew(self, sandbox: str) -> None:
        await self._ask(sandbox, Renew())

    # --- parts ---

    async def _give_up(self, key: str) -> None:
        with anyio.move_on_after(_KILL_PATIENCE_S, shield=True):
            await self.kill(key)

    def _base(self, spec: SandboxSpec) -> BaseImage:
        """What the spec's base is to the shim; here that is all it is told. Raises ``SandboxRefused``."""
        return BaseImage(digest=spec.base, layers=(), on_host=spec.base == HOST)

    def _server(self) -> ForkServer:
        if self._fork_server is None:
            raise SandboxError(f"backend {self.name}: not running; use it inside `async with backend.running():`")
        return self._fork_server

    def _name_of(self, key: str) -> str:
        name = name_of(key)
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise SandboxRefused(
                f"sandbox key {key!r}: {len(name)} bytes as a directory name; 1 to {MAX_NAME_BYTES} fit"
            )
        return name

    def _exists(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=self._root_fd, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    async def _ask(self, key: str, order: Order, data: bytes = b"") -> tuple[Answer, bytes]:
        """One order over a connection of its own. Raises what the shim answers, or ``SandboxGone``."""
        self._server()
        # By way of the descriptor, for the address of a socket has room for 107 bytes only.
        path = f"/proc/self/fd/{self._root_fd}/{self._name_of(key)}/sock"
        inbox = Inbox()
        try:
            async with await anyio.connect_unix(path) as stream:
                await stream.send(encode(order, data))
                while (message := inbox.take()) is None:
                    inbox.feed(await stream.receive(_RECEIVE_BYTES))
                if isinstance(order, Kill):
                    await _until_end(stream)  # the shim itself is gone too
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise SandboxGone(f"sandbox {key}: nothing lives under {self.root / name_of(key)}; create it") from error
        except (anyio.EndOfStream, anyio.BrokenResourceError, ConnectionResetError, BrokenPipeError) as error:
            raise SandboxGone(f"sandbox {key}: its shim ended during the call{self._last_words(key)}") from error
        answer, content = message
        if isinstance(answer, Failed):
            raise _error_of(answer, self._kind.fix)
        if isinstance(answer, (Made, Ran, Done)):
            return answer, content
        raise SandboxError(f"sandbox {key}: its shim answered with {type(answer).__name__}, which is no answer")

    def _last_words(self, key: str) -> str:
        try:
            text = (self.root / name_of(key) / "log").read_text(errors="replace").strip()
        except OSError:
            return ""
        return f"; its last words: {text[-2000:]}" if text else ""


class NamespaceBackend(ShimBackend):
    """The embedded backend: for root of the host, or an ordinary user (``shim.users`` has what differs)."""

    def __init__(self, root: Path, *, name: str, use_cgroups: bool = True, images: BaseImages | None = None) -> None:
        """
        Args:
            root, name: as in ``ShimBackend``.
            use_cgroups: False falls back to rlimits and a memory watchdog even where control groups could be made.
            images: where bases other than ``host`` are found.
        """
        self._images = images
        limits = "cgroups" if use_cgroups else "rlimits"
        self._privileged = is_root_of_the_host()
        kind = ShimKind(
            "namespaces",
            "t1actors.sandbox.shim.forkserver",
            (limits,),
            fix_of_namespaces(privileged=self._privileged),
            entry="" if self._privileged else "t1actors.sandbox.shim.outer",
        )
        super().__init__(root, name=name, kind=kind)

    async def commit(self, sandbox: str, file: Path, *, max_bytes: int) -> None:
        """Kill every process inside, then write what was written as an image layer (``sandbox.layer_tar``) into the new
        ``file`` (a full path). Raises ``SandboxRefused`` where its files claim more than ``max_bytes``, ``ArchiveError``."""
        await self._ask(sandbox, Commit(str(file), max_bytes))

    def _base(self, spec: SandboxSpec) -> BaseImage:
        if spec.base == HOST:
            return BaseImage(digest="", layers=(), on_host=True)
        if self._images is None:
            text = f"base {spec.base!r} is not known; `host` is, and backend {self.name} was given no images"
            raise SandboxRefused(f"sandbox {spec.key}: {text}")
        image = self._images.base_image(spec.base)
        if image.layers and not self._privileged:
            text = f"base {spec.base!r}: only root of the host can give an image's files to the sandbox's users"
            raise SandboxRefused(f"sandbox {spec.key}: {text}; run as root, or with Docker (sandbox.backend)")
        return image


async def _until_end(stream: anyio.abc.SocketStream) -> None:
    try:
        while True:
            await stream.receive(_RECEIVE_BYTES)
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return


def _check_spec(spec: SandboxSpec) -> None:
    def need(condition: bool, message: str) -> None:
        if not condition:
            raise SandboxRefused(f"sandbox {spec.key}: {message}")

    limits = spec.limits
    need(_is_plain(spec.workdir), f"workdir {spec.workdir!r} must be absolute, without `..`")
    need(math.isfinite(spec.lease_s) and spec.lease_s > 0, f"lease_s = {spec.lease_s} must be positive")
    need(limits.memory_mb >= 16, f"limits.memory_mb = {limits.memory_mb}: a shell needs 16 at least")
    need(limits.disk_mb >= 1, f"limits.disk_mb = {limits.disk_mb}: must be at least 1")
    need(limits.processes >= 2, f"limits.processes = {limits.processes}: a shell and one command need 2")
    need(limits.output_bytes >= 0, f"limits.output_bytes = {limits.output_bytes}: must not be negative")
    need(spec.network in (NO_NETWORK, INTERNET), f"network = {spec.network!r}: there are {NO_NETWORK} and {INTERNET}")
    for block in spec.refused_addresses:
        need(not (fault := fault_of_block(block)), f"refused_addresses: {fault}")
    for name, value in spec.env:
        need(bool(name) and "=" not in name and "\0" not in name + value, f"environment variable {name!r} can't be set")
    for layer in spec.layers:
        need(_is_plain(layer.at), f"a layer at {layer.at!r}: must be absolute, without `..`")
        need(not layer.read_only or layer.at.strip("/") != "", "a read-only layer can't be laid at /")
        need(layer.read_only or bool(layer.archive), f"a layer at {layer.at!r} has no archive")


def _is_plain(path: str) -> bool:
    return path.startswith("/") and "\0" not in path and not {".", ".."} & set(path.split("/"))


def _create_order(spec: SandboxSpec, base: BaseImage) -> Create:
    limits = spec.limits
    return Create(
        workdir=spec.workdir,
        environment=[*base.env, *spec.env],
        memory_mb=limits.memory_mb,
        disk_mb=limits.disk_mb,
        processes=limits.processes,
        output_bytes=limits.output_bytes,
        command_s=limits.command_s,
        lease_s=spec.lease_s,
        layers=[(layer.at, layer.read_only, layer.over_base, len(layer.archive)) for layer in spec.layers],
        base=spec.base,
        base_host=base.on_host,
        base_layers=list(base.layers),
        base_holds=list(base.holds),
        network=spec.network,
        refused=list(spec.refused_addresses),
    )


def _error_of(failed: Failed, fix: str) -> SandboxError:
    match failed.kind, failed.texts:
        case "SandboxUnavailable", [step, reason]:
            return SandboxUnavailable(step, reason, fix)
        case "SandboxUnavailable", [step, reason, own_fix]:
            return SandboxUnavailable(step, reason, own_fix)
        case "SandboxDied", [message, cause]:
            return SandboxDied(message, cause)
        case "ArchiveError", [message]:
            return errors.ArchiveError(message)
        case "SandboxSealed", [message]:
            return errors.SandboxSealed(message)
        case "SandboxRefused", [message]:
            return SandboxRefused(message)
        case "SandboxError", [message]:
            return SandboxError(message)
        case kind, texts:
            return SandboxError(f"{kind}: {'; '.join(texts)}")
