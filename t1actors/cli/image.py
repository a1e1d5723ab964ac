"""`t1 image`: the images that sandboxes are made of."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed, WrongUsage
from t1actors.cli.numbers import Whole, at_least
from t1actors.cli.progress import Progress
from t1actors.config import REFUSED_ADDRESSES, SandboxConfig, fault_of_block
from t1actors.images.build import build_task
from t1actors.images.credentials import Logins
from t1actors.images.image import short
from t1actors.images.prune import prune as prune_store
from t1actors.images.sources import Progress as ImportProgress
from t1actors.images.sources import import_source
from t1actors.images.steps import BuildNetwork
from t1actors.images.store import ImageStore
from t1actors.observe.quantities import size
from t1actors.tasks.reader import read_task

REGISTRY = "docker://"
Store = Annotated[Path, Parameter(help="The store's directory; `sandbox.images` of a run's configuration.")]
PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
STORE = Path(SandboxConfig().images)


def build(
    task_dir: Annotated[Path, Parameter(help="A task's directory.")],
    *,
    name: Annotated[str, Parameter(help="A name to keep the image under.")] = "",
    host_base: Annotated[
        bool, Parameter(help="Let the host's own /usr stand in for the images that it is built from.", negative="")
    ] = False,
    network: Annotated[bool, Parameter(help="Let RUN instructions have a network.", negative="")] = False,
    refuse: Annotated[
        str, Parameter(help="What the network does not reach: IPv4 blocks, and `host` for this host's own addresses.")
    ] = ",".join(REFUSED_ADDRESSES),
    proxy: Annotated[str, Parameter(help="A proxy for HTTP and HTTPS that RUN instructions are told of.")] = "",
    store: Store = STORE,
) -> None:
    """Build a task's environment into an image, as a run does by itself.

    Every RUN is kept as a layer: what did not change is not run again, with a network or without.

    Example: `t1 image build my-tasks/one`
    """
    allowed = _build_network(network, refuse, proxy)
    images = _store(store)
    task = read_task(task_dir.absolute())

    async def run() -> None:
        with Progress("build") as progress:
            built = await build_task(images, task, host_base=host_base, network=allowed, progress=progress)
        if name:
            images.set_name(name, built.digest, source=f"task {task.name}")
        print(
            f"{built.digest}  {built.steps} instructions, {built.ran} RUN not kept from before, in {progress.elapsed}"
        )

    anyio.run(run, backend="trio")


def _build_network(on: bool, refuse: str, proxy: str) -> BuildNetwork:
    blocks = tuple(block.strip() for block in refuse.split(",") if block.strip())
    for block in blocks:
        if fault := fault_of_block(block):
            raise WrongUsage(f"--refuse: {fault}")
    if proxy and not on:
        raise WrongUsage("--proxy: give --network, too, or RUN instructions cannot reach it")
    return BuildNetwork(on, blocks, tuple((name, proxy) for name in PROXY_VARIABLES if proxy))


def import_(
    name: Annotated[str, Parameter(help="What a Dockerfile's FROM calls it, such as debian:12.")],
    source: Annotated[
        str, Parameter(help="A docker save tar, an OCI layout, a root file system's directory, or docker://IMAGE.")
    ],
    *,
    tag: Annotated[str, Parameter(help="Which image, where the source holds several.")] = "",
    max_gb: Annotated[Whole, Parameter(help="The most that one layer may unpack to.")] = 20,
    auth_file: Annotated[
        Path | None,
        Parameter(
            help="Logins of registries, as `docker login` writes them; else ~/.docker/config.json, if it is there."
        ),
    ] = None,
    store: Store = STORE,
) -> None:
    """Import an image under a name. Everything in it is checked against its digests.

    Example: `t1 image import debian:12 debian.tar`
    """
    at_least(1, "--max-gb", max_gb)
    if not name or name.startswith("sha256:") or "://" in name:
        raise WrongUsage(f"NAME {name!r}: give what a Dockerfile's FROM calls the image, such as debian:12")
    images = _store(store, max_layer_bytes=max_gb << 30)
    with Progress("layers") as progress:
        if source.startswith(REGISTRY):
            logins = Logins() if auth_file is None else Logins(auth_file, must_exist=True)
            digest = _pull(images, source.removeprefix(REGISTRY), progress, logins)
        else:
            digest = import_source(images, Path(source), tag=tag, progress=progress)
    images.set_name(name, digest, source=source)
    print(f"{name}  {digest}")


def _pull(images: ImageStore, reference: str, progress: ImportProgress, logins: Logins) -> str:
    try:
        from t1actors.images.registry import pull
    except ModuleNotFoundError as error:
        raise CommandFailed(f"pulling needs the package {error.name}: pip install 't1actors[images]'") from error
    return pull(images, reference, progress=progress, logins=logins)


def list_(*, store: Store = STORE) -> None:
    """List the images: digest, size, when last used, names.

    Example: `t1 image list`
    """
    images = _store(store)
    found = sorted(images.list(), key=lambda listed: -listed.used_s)
    for listed in found:
        used = datetime.datetime.fromtimestamp(listed.used_s).strftime("%Y-%m-%d %H:%M")
        names = ", ".join(named.name for named in listed.names) or "-"
        stands_in = f"  on this host's /usr instead of {listed.image.t1_stands_in_for}" if listed.image.on_host else ""
        network = "  built with a network: building it again may give another" if listed.network else ""
        print(f"{short(listed.digest)}  {size(listed.size_bytes):>8}  {used}  {names}{stands_in}{network}")
    print(f"{len(found)} images in {images.root}")


def prune(
    *,
    days: Annotated[Whole, Parameter(help="Keep what was used in so many days.")] = 30,
    forget: Annotated[str, Parameter(help="First take this name off its image.")] = "",
    store: Store = STORE,
) -> None:
    """Remove images and kept layers that have no name, were not used lately and that no live sandbox uses.

    Example: `t1 image prune --days 7`
    """
    at_least(0, "--days", days)
    images = _store(store)
    if forget and not images.forget(forget):
        raise CommandFailed(f"{forget}: no image has this name; `t1 image list` shows those there are")
    done = prune_store(images, days=days, clock_s=time.time)
    print(f"removed {len(done.images)} images and {done.layers} layers, {size(done.size_bytes)}, from {images.root}")


def _store(path: Path, *, max_layer_bytes: int | None = None) -> ImageStore:
    root = path.expanduser().absolute()
    return ImageStore(root) if max_layer_bytes is None else ImageStore(root, max_layer_bytes=max_layer_bytes)
