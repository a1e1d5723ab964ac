"""The sandbox benchmark on real sandboxes: all are counted, and nothing of them is left."""

import trio

from bench.sandbox import create, measure, with_commands
from bench.sandbox_memory import live_memory, memory_of
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.docker.backend import DockerBackend
from t1actors.sandbox.interface import RunRequest, SandboxSpec


def test_every_sandbox_is_killed_at_the_end_and_its_cpu_is_counted(host_makes_sandboxes, tmp_path):
    root = tmp_path / "s"
    nothing = measure(root, 0, create)
    assert nothing.seconds == {}
    busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"

    async def work(backend, number):
        await create(backend, number)
        await with_commands(1)(backend, number + 1)
        await backend.run(f"s{number}", RunRequest(key="busy", command=busy, limit_s=60))

    found = measure(root, 1, work)
    assert {name: len(seconds) for name, seconds in found.seconds.items()} == {"create": 2, "command": 2}
    assert list(root.iterdir()) == []
    # The loop takes the better part of a second anywhere; lost in a dead shim's account it would be a few milliseconds.
    assert found.whole.cpu_s - nothing.whole.cpu_s > 0.15


def test_every_process_of_living_sandboxes_has_its_memory_counted_and_nobody_elses(host_makes_sandboxes, tmp_path):
    bystander = NamespaceBackend(tmp_path / "other", name="other")
    assert memory_of(tmp_path / "s").total() == 0

    async def main():
        async with bystander.running():
            await bystander.create(SandboxSpec(key="other"))
            found = memory_of(tmp_path / "other")
            await bystander.kill("other")
            return found

    alone = trio.run(main)
    found = live_memory(NamespaceBackend(tmp_path / "s", name="bench"), 2)
    assert sorted(found) == ["first processes", "fork server", "shells", "shims"]
    assert sorted(alone) == ["first processes", "fork server", "shims"]  # no command, no shell
    assert all(size > 0 for size in found.values())
    assert list((tmp_path / "s").iterdir()) == []


def test_the_memory_of_containers_has_what_their_runtime_keeps_beside_them(docker_daemon, tmp_path):
    backend = DockerBackend(tmp_path / "s", name="bench", socket=docker_daemon.socket, image=docker_daemon.image)
    found = live_memory(backend, 1)
    assert {"attendants", "fork server", "shells", "shims"} < set(found)
    assert any(name.startswith("containerd-shim") for name in found)
