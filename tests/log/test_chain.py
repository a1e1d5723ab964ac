"""Three real processes, killed at random with -9: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from t1actors.log.check import check_journals
from t1actors.log.filelog import FileLog
from t1actors.log.merged import merged
from tests.log.support import frames_of

CHAIN = {"source": ("-", "trio"), "triple": ("source", "trio"), "sink": ("triple", "asyncio")}
DEADLINE_S = 600.0


class Chain:
    def __init__(self, root: Path, count: int) -> None:
        self.root = root
        self.count = count
        self.processes = {name: self.start(name) for name in CHAIN}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        source, backend = CHAIN[name]
        command = [sys.executable, "-m", "tests.log.chain_process", self.root, name, source, self.count, backend]
        return subprocess.Popen([str(word) for word in command], cwd=Path(__file__).parents[2])

    def kill(self, name: str) -> None:
        assert self.processes[name].poll() is None, f"{name} ended by itself"
        self.processes[name].kill()
        self.processes[name].wait()
        self.processes[name] = self.start(name)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def run_chain(root: Path, *, count: int, kills_each: int) -> None:
    """Kill every process ``kills_each`` times while ``count`` numbers pass through; then the result must be exact."""
    chance = random.Random(3)
    log = FileLog(root)
    chain = Chain(root, count)
    deadline = time.monotonic() + DEADLINE_S
    readers = {name: log.open_reader(name) for name in CHAIN}
    # Each is killed as its own journal grows, so that it dies at work however slow the machine is.
    kill_at = {name: [count * (n + 1) // (kills_each + 1) for n in range(kills_each)] for name in CHAIN}
    results: list[int] = []
    try:
        while len(results) < count:
            assert time.monotonic() < deadline, f"{len(results)} of {count} results, still to kill at: {kill_at}"
            time.sleep(chance.uniform(0, 0.02))
            for name, reader in readers.items():
                frames = reader.read()
                if name == "sink":
                    results += [msgspec.msgpack.decode(raw) for frame in frames for raw in frame.events]
                if kill_at[name] and reader.next_sequence >= kill_at[name][0]:
                    kill_at[name].pop(0)
                    chain.kill(name)
    finally:
        chain.end()
    expected = [21 * n for n in range(count)]
    assert results == expected
    assert [msgspec.msgpack.decode(raw) for frame in frames_of(log, "sink") for raw in frame.events] == expected
    assert check_journals(log).problems == []
    assert sum(1 for _ in merged(log)) == 3 * count
    assert len({frame.epoch for frame in frames_of(log, "sink")}) > 1


def test_a_chain_of_three_processes_is_exact_under_kill_9(tmp_path: Path):
    run_chain(tmp_path, count=900, kills_each=3)


@pytest.mark.slow
def test_a_long_chain_of_three_processes_is_exact_under_kill_9(tmp_path: Path):
    run_chain(tmp_path, count=20_000, kills_each=70)
