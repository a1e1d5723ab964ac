"""Pools that die: what they leave is what tests look at."""

import signal
import subprocess
import sys

POOL = """
import os, signal, sys, anyio
from pathlib import Path
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.docker.backend import DockerBackend
from t1actors.sandbox.interface import RunRequest, SandboxSpec

async def main():
    root, lease_s, *daemon = sys.argv[1:]
    if daemon:
        backend = DockerBackend(Path(root), name="doomed", socket=daemon[0], image=daemon[1])
    else:
        backend = NamespaceBackend(Path(root), name="doomed")
    async with backend.running():
        for number in range(5):
            await backend.create(SandboxSpec(key=f"s0.t{number}", lease_s=float(lease_s)))
            await backend.run(f"s0.t{number}", RunRequest(key="first", command=f"x={number}; echo {number} >f", limit_s=9))
        async with anyio.create_task_group() as group:
            group.start_soon(backend.run, "s0.t0", RunRequest(key="running", command="sleep 1; echo finished", limit_s=9))
            await anyio.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main, backend="trio")
"""


def start_and_kill_a_pool(live, lease_s):
    """Five sandboxes, made by a process that is gone: ``s0.t0`` to ``s0.t4``."""
    daemon = [live.daemon.socket, live.daemon.image] if live.daemon else []
    command = [sys.executable, "-c", POOL, str(live.root), str(lease_s), *daemon]
    assert live.call(lambda: subprocess.run(command, timeout=60).returncode) == -signal.SIGKILL
