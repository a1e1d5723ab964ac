"""Trials by the hundred while pool, verifier, fork servers, shims and daemon are killed at random: all are graded, the rate
holds, and after one run of the reaper nothing is left."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

from t1actors.sandbox.docker.reconcile import DaemonClient
from t1actors.sandbox.reaper import reap
from tests.docker_daemon import own_daemon
from tests.sandbox.conftest import Live
from tests.sandbox.storm_parts import BURST, LEASE_S, MAX_LIVE, NOT_NOW, RATE_PER_S, names_of
from tests.sandbox.test_shared_bucket import assert_bound_holds

ROOT = Path(__file__).parent.parent.parent
OF_THE_POOL = {"fork server": "t1-forkserver", "shim": "t1-shim", "init": "t1-init", "attendant": "t1-attendant"}
OF_THE_VERIFIER = {"grader": "t1-shim", "grader's fork server": "t1-forkserver"}
PROCESSES = ("pool", "verifier")
VICTIMS = (*PROCESSES, "fork server", "shim", "shim", "shim", "grader", "grader", "grader's fork server")


class Storm:
    """The processes of pool and verifier, each started again whenever it is dead, and who kills what."""

    def __init__(self, directory, trials, seed, daemon=None):
        self.directory, self.trials, self.daemon = directory, trials, daemon
        self.draw = random.Random(seed)
        self.pool = Live(directory / "sandboxes", daemon)
        self.graders = Live(directory / "graders", daemon)
        self.victims = (*VICTIMS, *(("attendant", "attendant", "daemon") if daemon else ("init",)))
        self.killed = dict.fromkeys(self.victims, 0)
        self.starts = 0
        self.restarting = None
        (directory / "sealed").mkdir()
        for name in ("created", "done"):
            (directory / name).touch()

    def done(self):
        return (self.directory / "done").read_text().split()

    def start(self, name):
        self.starts += 1
        arguments = [str(self.directory), str(self.trials), str(self.starts)]
        arguments += [self.daemon.socket, self.daemon.image] if self.daemon else []
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
        with open(self.directory / "stderr", "ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", f"tests.sandbox.storm_{name}", *arguments],
                cwd=ROOT,
                env=environment,
                stderr=stderr,
            )

    def blow(self, every_s, deadline_s):
        ends_s = time.monotonic() + deadline_s
        running = {name: self.start(name) for name in PROCESSES}
        while any(process.poll() != 0 for process in running.values()):
            assert time.monotonic() < ends_s, f"{len(self.done())} trials done in time; {self.said()}"
            for name, process in running.items():
                if process.poll():
                    assert process.returncode in (-signal.SIGKILL, NOT_NOW), self.said()
                    running[name] = self.start(name)
            time.sleep(self.draw.uniform(0, 2 * every_s))
            self.kill_one(running)
        if self.restarting:
            self.restarting.join()

    def kill_one(self, running):
        victim = self.draw.choice(self.victims)
        if victim in running:
            running[victim].kill()
            self.killed[victim] += 1
        elif victim == "daemon":
            if self.restarting is None or not self.restarting.is_alive():
                self.daemon.kill()
                self.restarting = threading.Thread(target=self.daemon.start)
                self.restarting.start()
                self.killed[victim] += 1
        elif self.restarting is None or not self.restarting.is_alive():  # who is inside, only the daemon knows
            where, name = (self.graders, OF_THE_VERIFIER) if victim in OF_THE_VERIFIER else (self.pool, OF_THE_POOL)
            self.kill_process(victim, [pid for pid, found in where.processes() if found == name[victim]])

    def kill_process(self, victim, found):
        if found:
            try:
                os.kill(self.draw.choice(found), signal.SIGKILL)
            except ProcessLookupError:
                return
            self.killed[victim] += 1

    def said(self):
        return (self.directory / "stderr").read_text()[-3000:]

    def reap(self, live):
        """As `t1 sandbox reap` does it."""

        async def of_the_daemon():
            client = DaemonClient(self.daemon.socket, live.prefix)
            async with client.running():
                return await client.reap(live.root, dry_run=False)

        found = reap(live.root)
        return [*found, *anyio.run(of_the_daemon)] if self.daemon else found

    def assert_nothing_is_left_after_one_reaper_run(self):
        time.sleep(LEASE_S + 1)  # what a killed grading left is leased still
        for live in (self.pool, self.graders):
            self.reap(live)
            assert not any(live.left().values()), live.left()
            assert self.reap(live) == []

    def assert_the_rate_held(self):
        """Of the creations that every pool's process made, over all of them."""
        times_s = [float(line) for line in (self.directory / "created").read_text().splitlines()]
        assert len(times_s) >= self.trials
        # So many may be between their tokens and their notes when the process is off the processor.
        assert_bound_holds(times_s, RATE_PER_S, BURST + MAX_LIVE)


def blown(directory, *, trials, seed, every_s, deadline_s, daemon=None):
    storm = Storm(directory, trials, seed, daemon)
    storm.blow(every_s, deadline_s)
    assert sorted(set(storm.done())) == sorted(names_of(trials))
    assert sum(storm.killed.values()) > 0, storm.killed
    storm.assert_nothing_is_left_after_one_reaper_run()
    storm.assert_the_rate_held()
    print(f"{trials} trials, {storm.starts} processes, killed {storm.killed}")
    return storm


def test_a_small_storm_leaves_nothing(host_makes_sandboxes, tmp_path):
    blown(tmp_path, trials=40, seed=1, every_s=0.25, deadline_s=240)


@pytest.mark.slow
def test_a_thousand_trials_in_a_storm_leave_nothing(host_makes_sandboxes, tmp_path):
    storm = blown(tmp_path, trials=1000, seed=2, every_s=0.5, deadline_s=3000)
    assert all(storm.killed.values()), storm.killed


@pytest.mark.slow
@pytest.mark.usefixtures("docker_daemon")
def test_a_storm_that_kills_the_docker_daemon_too_leaves_nothing(tmp_path):
    with own_daemon() as daemon:
        storm = blown(tmp_path, trials=150, seed=4, every_s=1.0, deadline_s=900, daemon=daemon)
    assert storm.killed["daemon"] > 0, storm.killed
