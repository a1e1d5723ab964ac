"""Real sandboxes for tests: made on this host, of every kind, and after each test nothing of them may be left.

A test that asks for ``live`` or ``one`` runs once with namespaces and once with Docker, against a daemon of the tests' own.
"""

import glob
import hashlib
import os
import signal
import time
from pathlib import Path

import anyio
import pytest

from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.docker.backend import DockerBackend
from t1actors.sandbox.interface import RunRequest, SandboxSpec
from tests.docker_daemon import Daemon, docker_of


class Live:
    """Runs a test body with a backend. ``body(backend)`` is async; ``self.root`` is the backend's directory."""

    def __init__(self, root: Path, daemon: Daemon | None = None):
        self.root = root
        self.daemon = daemon
        self.kind = "docker" if daemon else "namespaces"
        self.leaves_outside = {"container"} if daemon else {"control group"}
        """What a shim that was killed leaves, beside its directory."""
        self.prefix = f"t1-{hashlib.sha256(os.fsencode(root)).hexdigest()[:10]}-"

    def backend(self, name="test", *, use_cgroups=True):
        if self.daemon:
            return DockerBackend(self.root, name=name, socket=self.daemon.socket, image=self.daemon.image)
        return NamespaceBackend(self.root, name=name, use_cgroups=use_cgroups)

    def containers(self):
        """The full ids of this root's containers."""
        if not self.daemon:
            return []
        ask = docker_of(f"unix://{self.daemon.socket}")
        return ask("ps", "-aq", "--no-trunc", "--filter", f"label=t1actors.root={self.prefix}").split()

    def kill_from_outside(self):
        """End all that runs inside, as an operator would."""
        if self.daemon:
            docker_of(f"unix://{self.daemon.socket}")("kill", *self.containers())
        else:
            self.signal("t1-init", signal.SIGKILL)

    def signal(self, name, number):
        for pid, found in self.processes():
            if found == name:
                os.kill(pid, number)

    def __call__(self, body, *, loop="trio", use_cgroups=True, expect_left=False):
        async def main():
            backend = self.make_backend(use_cgroups=use_cgroups)
            async with backend.running():
                try:
                    return await body(backend)
                finally:
                    if not expect_left:
                        with anyio.CancelScope(shield=True):
                            for key in await backend.list():
                                await backend.kill(key)

        result = anyio.run(main, backend=loop)
        if not expect_left:
            self.assert_nothing_left()
        return result

    def make_backend(self, *, use_cgroups):
        return self.backend(use_cgroups=use_cgroups)

    def call(self, body):
        """``body()`` as who owns the sandboxes."""
        return body()

    def processes(self):
        """What runs for this root: shims, inits, attendants, what holds a log, and all that is in their control groups."""
        found = []
        groups = [self.prefix, *self.containers()]
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                ours = os.fsencode(self.root) in (entry / "cmdline").read_bytes().split(b"\0")
                inside = self.is_inside(entry, groups)
                name = (entry / "comm").read_text().strip()
                zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                ours = ours or os.readlink(entry / "fd/1").startswith(f"{self.root}/")
            except OSError:
                continue
            if (ours or inside) and not zombie:
                found.append((int(entry.name), name))
        return found

    def is_inside(self, entry, groups):
        return any(group in (entry / "cgroup").read_text() for group in groups)

    def mounts(self):
        found = set()
        for path in glob.glob("/proc/[0-9]*/mountinfo"):
            try:
                text = Path(path).read_text()
            except OSError:
                continue
            found |= {line for line in text.splitlines() if str(self.root) in line and "t1-" in line}
        return found

    def groups(self):
        return glob.glob(f"/sys/fs/cgroup/**/{self.prefix}*", recursive=True)

    def left(self):
        return {
            "processes": self.processes(),
            "mounts": self.mounts(),
            "groups": self.groups(),
            "directories": os.listdir(self.root),
            "containers": self.containers(),
        }

    def assert_nothing_left(self):
        """A process that has answered its last order still needs a moment to be gone."""
        until_s = time.monotonic() + 20.0
        while time.monotonic() < until_s:
            left = self.left()
            if not any(left.values()):
                return
            time.sleep(0.02)
        assert not any(left.values()), left


class LiveAsAUser(Live):
    """The backend is an ordinary user's, and so is the test's body: both run in a child of the test."""

    def __init__(self, user):
        super().__init__(user.directory / "sandboxes")
        self.user = user
        self.leaves_outside = set()

    def __call__(self, body, **options):
        # Without control groups, unless somebody gave the user one.
        return self.user.run(lambda: super(LiveAsAUser, self).__call__(body, **options))

    def call(self, body):
        return self.user.run(body)

    def is_inside(self, entry, groups):
        """All that the user's ids run, but for the test itself."""
        status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines())
        return self.user.has(int(status["Uid"].split()[0])) and int(entry.name) != os.getpid()


@pytest.fixture(params=["namespaces", "docker"])
def live(request, tmp_path):
    """Of every kind. Ask for ``namespaces`` for what only those promise."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def docker(docker_daemon, tmp_path):
    return Live(tmp_path / "sandboxes", docker_daemon)


@pytest.fixture
def namespaces(host_makes_sandboxes, tmp_path):
    return Live(tmp_path / "sandboxes")


@pytest.fixture
def one(live):
    """Runs commands in one sandbox: ``one(["ls", ...])`` gives their results."""

    def run(commands, *, limit_s=20.0, **spec):
        async def body(backend):
            await backend.create(SandboxSpec(key="one", **spec))
            results = []
            for number, command in enumerate(commands):
                results.append(await backend.run("one", RunRequest(key=str(number), command=command, limit_s=limit_s)))
            return results

        return live(body)

    return run
