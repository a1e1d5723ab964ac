"""Pools that die: what they leave is what tests look at."""

import signal
import subprocess
import sys

POOL = """
import os, signal, sys, anyio
from pathlib import Path
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import RunRequest, SandboxSpec

async def main():
    backend = NamespaceBackend(Path(sys.argv[1]), name="doomed")
    async with backend.running():
        for number in range(5):
            await backend.create(SandboxSpec(key=f"s0.t{number}", lease_s=float(sys.argv[2])))
            await backend.run(f"s0.t{number}", RunRequest(key="first", command=f"x={number}; echo {number} >f", limit_s=9))
        async with anyio.create_task_group() as group:
            group.start_soon(backend.run, "s0.t0", RunRequest(key="running", command="sleep 1; echo finished", limit_s=9))
            await anyio.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main, backend="trio")
"""


def start_and_kill_a_pool(root, lease_s):
    """Five sandboxes, made by a process that is gone: ``s0.t0`` to ``s0.t4``."""
    code = subprocess.run([sys.executable, "-c", POOL, str(root), str(lease_s)], timeout=60).returncode
    assert code == -signal.SIGKILL
