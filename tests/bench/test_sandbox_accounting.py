"""The sandbox benchmark on real sandboxes: all are counted, and nothing of them is left."""

from bench.sandbox import create, measure, with_commands
from t1actors.sandbox.interface import RunRequest


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
