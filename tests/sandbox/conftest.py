"""Real sandboxes for tests: made on this host, and after each test nothing of them may be left."""

import glob
import hashlib
import os
import time
from pathlib import Path

import anyio
import pytest

from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import RunRequest, SandboxSpec


class Live:
    """Runs a test body with a backend. ``body(backend)`` is async; ``self.root`` is the backend's directory."""

    def __init__(self, root: Path):
        self.root = root
        self.prefix = f"t1-{hashlib.sha256(os.fsencode(root)).hexdigest()[:10]}-"

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
        return NamespaceBackend(self.root, name="test", use_cgroups=use_cgroups)

    def processes(self):
        """What runs for this root: shims, inits, and all that is in their control groups."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                ours = os.fsencode(self.root) in (entry / "cmdline").read_bytes().split(b"\0")
                inside = self.prefix in (entry / "cgroup").read_text()
                name = (entry / "comm").read_text().strip()
                zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if (ours or inside) and not zombie:
                found.append((int(entry.name), name))
        return found

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
        }

    def assert_nothing_left(self):
        """A process that has answered its last order still needs a moment to be gone."""
        for _ in range(250):
            left = self.left()
            if not any(left.values()):
                return
            time.sleep(0.02)
        assert not any(left.values()), left


@pytest.fixture
def live(host_makes_sandboxes, tmp_path):
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
