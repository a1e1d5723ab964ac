"""Trials by the hundred while pool, fork servers, shims and graders are killed at random: all are done, the rate holds, and
after one run of the reaper nothing is left."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t1actors.sandbox.reaper import reap
from tests.sandbox.conftest import Live
from tests.sandbox.storm_pool import BURST, LEASE_S, MAX_LIVE, RATE_PER_S
from tests.sandbox.test_shared_bucket import assert_bound_holds

ROOT = Path(__file__).parent.parent.parent
VICTIMS = ("pool", "fork server", "shim", "shim", "shim", "grader", "grader", "init")


class Storm:
    """The pool's process, started again whenever it is dead, and who kills what."""

    def __init__(self, directory, trials, seed):
        self.directory, self.trials = directory, trials
        self.draw = random.Random(seed)
        self.pool = Live(directory / "sandboxes")
        self.graders = Live(directory / "graders")
        self.killed = dict.fromkeys(VICTIMS, 0)
        self.starts = 0
        for name in ("created", "done"):
            (directory / name).touch()

    def done(self):
        return (self.directory / "done").read_text().split()

    def start(self):
        self.starts += 1
        arguments = [str(self.directory), str(self.trials), str(self.starts)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
        with open(self.directory / "stderr", "ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.sandbox.storm_pool", *arguments], cwd=ROOT, env=environment, stderr=stderr
            )

    def blow(self, every_s, deadline_s):
        ends_s = time.monotonic() + deadline_s
        process = self.start()
        while process.poll() != 0:
            assert time.monotonic() < ends_s, f"{len(self.done())} trials done in time; {self.said()}"
            if process.returncode is not None:
                assert process.returncode in (-signal.SIGKILL, 3), self.said()
                process = self.start()
            time.sleep(self.draw.uniform(0, 2 * every_s))
            self.kill_one(process)

    def kill_one(self, process):
        victim = self.draw.choice(VICTIMS)
        if victim == "pool":
            process.kill()
            self.killed[victim] += 1
            return
        where = self.graders if victim == "grader" else self.pool
        names = {"fork server": "t1-forkserver", "init": "t1-init"}
        found = [pid for pid, name in where.processes() if name == names.get(victim, "t1-shim")]
        if found:
            try:
                os.kill(self.draw.choice(found), signal.SIGKILL)
            except ProcessLookupError:
                return
            self.killed[victim] += 1

    def said(self):
        return (self.directory / "stderr").read_text()[-3000:]

    def assert_nothing_is_left_after_one_reaper_run(self):
        time.sleep(LEASE_S + 1)  # what a killed grading left is leased still
        for live in (self.pool, self.graders):
            reap(live.root)
            assert not any(live.left().values()), live.left()
            assert reap(live.root) == []

    def assert_the_rate_held(self):
        times_s = [float(line) for line in (self.directory / "created").read_text().splitlines()]
        assert len(times_s) >= self.trials
        # So many may be between their tokens and their notes when the process is off the processor.
        assert_bound_holds(times_s, RATE_PER_S, BURST + MAX_LIVE)


def blown(directory, *, trials, seed, every_s, deadline_s):
    storm = Storm(directory, trials, seed)
    storm.blow(every_s, deadline_s)
    assert sorted(set(storm.done())) == sorted(f"s{n // 100}.t{n % 100}" for n in range(trials))
    assert sum(storm.killed.values()) > 0, storm.killed
    storm.assert_nothing_is_left_after_one_reaper_run()
    storm.assert_the_rate_held()
    print(f"{trials} trials, {storm.starts} pools, killed {storm.killed}")
    return storm


def test_a_small_storm_leaves_nothing(host_makes_sandboxes, tmp_path):
    blown(tmp_path, trials=40, seed=1, every_s=0.25, deadline_s=240)


@pytest.mark.slow
def test_a_thousand_trials_in_a_storm_leave_nothing(host_makes_sandboxes, tmp_path):
    storm = blown(tmp_path, trials=1000, seed=2, every_s=0.5, deadline_s=3000)
    assert all(storm.killed.values()), storm.killed
