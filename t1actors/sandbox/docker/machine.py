"""One container, owned by its shim: made in one go, and taken apart without a rest.

The daemon makes the root (the image's layers and one upper layer), the namespaces and the control groups. Before it starts
the container the shim lays the writable layers of the order out in the upper one, and afterwards the container's mounts are
brought to what every sandbox has: /etc/hosts and its like are files of the tree and no mounts, /dev can't be changed, and
read-only layers are mounts of their own, in memory. The container's first process is its bash, which only waits for the shim
to end; shells come from the attendant.

Guarantees: after ``kill_inside`` every process inside is dead, whether the daemon answers or not; after ``remove`` there is
no process, mount, container or directory of the sandbox. Where the daemon can't be asked to remove the container, its
record stays until a backend of this root reaps or lists.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
from typing import NamedTuple

from t1actors.sandbox.archive import OPAQUE_ATTRIBUTE, walk
from t1actors.sandbox.docker.attendant import Attended, in_child, run_attendant
from t1actors.sandbox.docker.daemon import AWAY_S, Daemon, DaemonFailed, container_name
from t1actors.sandbox.docker.limits import ContainerLimits, takes_up
from t1actors.sandbox.docker.recipe import LABEL_STANDS_IN, container_recipe
from t1actors.sandbox.docker.tree import complete_init_layer, finish_mounts, make_like_below, owned_as
from t1actors.sandbox.errors import SandboxRefused
from t1actors.sandbox.shim import linux
from t1actors.sandbox.shim.init import NAMESPACES
from t1actors.sandbox.shim.linux import StepFailed
from t1actors.sandbox.shim.machine import Built
from t1actors.sandbox.shim.network import RESOLV_CONF, Network, find_tool, start_network
from t1actors.sandbox.shim.own_directory import is_anothers
from t1actors.sandbox.shim.rootfs import lay_out
from t1actors.sandbox.shim.sandbox import BASE_ENVIRONMENT, HOST_ENVIRONMENT, agree
from t1actors.sandbox.shim.shell import Shell
from t1actors.sandbox.unpack import remove_tree
from t1actors.sandbox.wire import HOST, NO_NETWORK, Create, LayerBytes, Made, split_layers

_NO_BASH = re.compile(r"exec: \W*bash\W.*(not found|no such file)", re.IGNORECASE)
_DEATH_PATIENCE_S = 30.0
_LOOK_AGAIN_MS = 20


class Docker:
    """The ``Kind`` whose sandboxes are containers of one daemon."""

    def __init__(self, root_directory: str, prefix: str, socket: str, image: str, filter_program: bytes) -> None:
        """``prefix`` begins the names of this root's containers; ``image`` is what the base ``host`` means."""
        self.root_directory = root_directory
        self.prefix = prefix
        self.daemon = Daemon(socket)
        self.image = image
        self.filter_program = filter_program

    def machine(self, name: str) -> Container:
        return Container(self, name)

    def clear(self, name: str) -> None:
        """Containers without a shim are the backend's to remove (``reconcile``)."""


class _Place(NamedTuple):
    """A container as the daemon describes it."""

    id: str
    image_id: str
    upper: str
    lowers: tuple[str, ...]
    environment: dict[str, str]
    pid: int
    stands_in_for: str


class Container:
    """One sandbox, from nothing to nothing: a ``Machine``."""

    def __init__(self, kind: Docker, name: str) -> None:
        self._kind = kind
        self._name = name
        self._directory = f"{kind.root_directory}/{name}"
        self._container = container_name(kind.prefix, name)
        self._place: _Place | None = None
        self._attendant_pid = 0
        self._network: Network | None = None
        self._pid_fd = -1
        self._dead_root = ""

    @property
    def upper(self) -> str:
        assert self._place is not None
        return self._place.upper

    @property
    def merged(self) -> str:
        """The container's own root while it lives; afterwards its layers, mounted here and read-only."""
        assert self._place is not None
        if not self._dead_root and self._has_ended(0):
            self._mount_dead_root(self._place)
        return self._dead_root or f"/proc/{self._place.pid}/root"

    def build(self, order: Create, data: bytes) -> Built:
        started_s = time.monotonic()
        layers = split_layers(order, data)
        if order.network != NO_NETWORK:
            find_tool()  # before anything is made
        for archive in filter(None, (layer.archive for layer in layers)):
            for _ in walk(archive):  # all of it is checked before anything is made
                pass
        self._make_control()
        self._make_container(order)
        place = self._place = self._look()
        self._lay_out(place, order, layers)
        self._start(place)
        laid_out_s = time.monotonic()
        place = self._place = self._look()
        self._pid_fd = os.pidfd_open(place.pid)
        limits = ContainerLimits(place.pid, place.upper, order.disk_mb)
        fixed = [(layer.at, None if layer.over_base else layer.archive) for layer in layers if layer.read_only]
        in_child(lambda: finish_mounts(self._pid_fd, place.upper, fixed, order.workdir))
        if order.network != NO_NETWORK:
            self._network = start_network(place.pid, order.refused)
        own_user = os.readlink(f"/proc/{place.pid}/ns/user") != os.readlink("/proc/self/ns/user")
        orders, reports, status = self._start_attendant(place, order, limits, own_user)
        root_uid = os.stat(place.upper).st_uid
        control = f"{self._directory}/control"
        shell = Shell(control, status, limits.disk_is_full, limits.counters, order.output_bytes, root_uid)
        made = Made(
            existed=False,
            base=place.image_id if order.base == place.image_id else f"{self._image(order)} {place.image_id}",
            namespaces=[name for name in NAMESPACES if name != "user" or own_user],
            uid_map=_read(f"/proc/{place.pid}/uid_map"),
            limits=[
                f"memory={order.memory_mb}MB cgroup-v{limits.version}",
                f"processes={order.processes} cgroup-v{limits.version}",
                f"disk={order.disk_mb}MB watchdog",
                f"output={order.output_bytes}B",
            ],
            warnings=[
                "disk is only watched, a burst can overshoot",
                *([] if own_user else ["root inside is the host's user 0: the daemon remaps no users"]),
                *([f"another image stands in for {place.stands_in_for}"] if place.stands_in_for else []),
            ],
            network=self._network.active if self._network else NO_NETWORK,
            phases={
                "root_s": round(laid_out_s - started_s, 6),
                "isolate_s": round(time.monotonic() - laid_out_s, 6),
            },
        )
        return Built(
            made,
            root_uid,
            shell,
            orders,
            reports,
            self._attendant_pid,
            limits.exceeded,
            self._network.pid_fd if self._network else None,
        )

    def kill_inside(self) -> None:
        """A pid namespace is gone when all in it are dead and waited for. The shells' parent is the attendant, so it is let
        live until then; if it is dead itself, its shells are this process's to wait for."""
        if self._pid_fd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
        until_s = time.monotonic() + _DEATH_PATIENCE_S
        while not self._has_ended(_LOOK_AGAIN_MS) and time.monotonic() < until_s:
            self._wait_for_orphans()
        if self._attendant_pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._attendant_pid, signal.SIGKILL)
                os.waitpid(self._attendant_pid, 0)
            self._attendant_pid = 0
        if self._network is not None:
            self._network.stop()
            self._network = None

    def remove(self) -> None:
        self.kill_inside()
        if self._dead_root:
            with contextlib.suppress(StepFailed):
                linux.unmount(self._dead_root)
        if is_anothers(self._directory):
            return
        try:
            self._kind.daemon.remove(self._container)
        except DaemonFailed as error:
            sys.stderr.write(f"container {self._container} stays until a backend of this root reaps: {error.reason}\n")
        root = os.open(self._kind.root_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        remove_tree(self._name, root)
        os.close(root)

    # --- parts ---

    def _make_control(self) -> None:
        os.mkdir(f"{self._directory}/control", 0o755)
        os.mkfifo(f"{self._directory}/control/alive", 0o444)
        # Held for this process's life: its end is what the container's first process waits for.
        os.open(f"{self._directory}/control/alive", os.O_RDWR | os.O_CLOEXEC)

    def _make_container(self, order: Create) -> None:
        recipe = container_recipe(self._kind.prefix, self._name, self._directory, self._image(order), order)
        ask = self._kind.daemon.ask
        what = f"/containers/create?name={self._container}"
        try:
            try:
                ask("creating the container", "POST", what, recipe, away_s=AWAY_S)
            except DaemonFailed as error:
                if error.status != 409:
                    raise
                # The directory is this shim's, so whoever made the container of that name is dead.
                self._kind.daemon.remove(self._container)
                ask("creating the container", "POST", what, recipe)
        except DaemonFailed as error:
            if error.status == 404 and order.base != HOST:
                text = f"base {order.base!r} is not known to the Docker daemon; `docker load` or `docker import` it"
                raise SandboxRefused(text) from error
            raise

    def _image(self, order: Create) -> str:
        return self._kind.image if order.base == HOST else order.base

    def _start(self, place: _Place) -> None:
        try:
            self._kind.daemon.ask("starting the container", "POST", f"/containers/{place.id}/start")
        except DaemonFailed as error:
            if _NO_BASH.search(error.reason):
                text = f"the image {place.image_id} has no bash; build one on it that has: RUN or COPY it"
                raise SandboxRefused(text) from error
            raise

    def _look(self) -> _Place:
        found = self._kind.daemon.ask("inspecting the container", "GET", f"/containers/{self._container}/json")
        driver = found["GraphDriver"]
        if driver["Name"] != "overlay2":
            raise DaemonFailed("finding the container's layers", f"storage driver {driver['Name']}; overlay2 is needed")
        volumes = [mount["Destination"] for mount in found["Mounts"] if mount["Type"] == "volume"]
        if volumes:
            raise SandboxRefused(
                f"the image declares volumes ({', '.join(volumes)}): what is written there is not sealed"
            )
        return _Place(
            found["Id"],
            found["Image"],
            driver["Data"]["UpperDir"],
            tuple(driver["Data"]["LowerDir"].split(":")),
            dict(pair.partition("=")[::2] for pair in found["Config"]["Env"] or ()),
            found["State"]["Pid"],
            str(found["Config"]["Labels"].get(LABEL_STANDS_IN, "")),
        )

    def _lay_out(self, place: _Place, order: Create, layers: list[LayerBytes]) -> None:
        complete_init_layer(place.lowers, RESOLV_CONF if order.network != NO_NETWORK else "")
        for layer in layers:
            directory = make_like_below(place.upper, place.lowers, layer.at)
            if not layer.archive or (layer.read_only and not layer.over_base):  # a mount will be there
                os.close(directory)
            else:
                with owned_as(place.upper):
                    lay_out(layer.archive, directory, overlay=OPAQUE_ATTRIBUTE)
        if takes_up(place.upper, order.disk_mb):
            raise SandboxRefused(f"the layers do not fit the disk of {order.disk_mb} MB; raise limits.disk_mb")

    def _start_attendant(
        self, place: _Place, order: Create, limits: ContainerLimits, own_user: bool
    ) -> tuple[int, int, int]:
        their_orders, orders = os.pipe2(os.O_CLOEXEC)
        reports, their_reports = os.pipe2(os.O_CLOEXEC)
        status, their_status = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(status, False)
        own = HOST_ENVIRONMENT if order.base == HOST else {}
        attended = Attended(
            pid=place.pid,
            pid_fd=self._pid_fd,
            own_user=own_user,
            limits=limits,
            workdir=order.workdir,
            environment={**BASE_ENVIRONMENT, **own, **place.environment, **dict(order.environment)},
            filter_program=self._kind.filter_program,
            orders_fd=their_orders,
            reports_fd=their_reports,
            status_fd=their_status,
        )
        linux.adopt_orphans()
        self._attendant_pid = os.fork()
        if self._attendant_pid == 0:
            try:
                run_attendant(attended)
            finally:  # whatever happens, a child never goes on as a second shim
                os._exit(70)
        for fd in (their_orders, their_reports, their_status):
            os.close(fd)
        agree(orders, reports, b"", b"R\n")
        os.set_blocking(reports, False)
        return orders, reports, status

    def _wait_for_orphans(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                if pid == self._attendant_pid:
                    self._attendant_pid = 0

    def _has_ended(self, timeout_ms: int) -> bool:
        if self._pid_fd < 0:
            return False
        poll = select.poll()
        poll.register(self._pid_fd, select.POLLIN)
        return bool(poll.poll(timeout_ms))

    def _mount_dead_root(self, place: _Place) -> None:
        """In a mount namespace of this process alone. Layers by short names: a mount's options have room for a page."""
        merged = f"{self._directory}/merged"
        os.mkdir(merged, 0o755)
        linux.unshare(linux.CLONE_NEWNS, "mount namespace")
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_SLAVE)
        layers = os.path.dirname(os.path.dirname(place.upper))
        os.chdir(layers)
        names = ":".join(os.path.relpath(path, layers) for path in (place.upper, *place.lowers))
        flags = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("t1-root", merged, "overlay", flags=flags, options=f"lowerdir={names}")
        os.chdir("/")
        self._dead_root = merged


def _read(path: str) -> str:
    with open(path) as file:
        return " ".join(file.read().split())
