"""A host that is not this one, for tests of sandboxes with a network: a network namespace behind a pair of devices.

Both addresses are of the block that is set aside for measuring networks, so that no real host has them.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

HERE, THERE, PORT = "198.18.77.1", "198.18.77.2", 8000
"""This host's address of the pair, the other one's, and the port that it answers at."""
DEVICE = "t1-tests"
PATIENCE_S = 10
SERVE = (
    "import http.server, sys; sys.stdin.readline(); "
    f"http.server.ThreadingHTTPServer(('{THERE}', {PORT}), http.server.SimpleHTTPRequestHandler).serve_forever()"
)
ASK = """timeout 5 bash -c 'exec 3<>/dev/tcp/{}/{}; printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3; head -c 40 <&3' 2>&1"""
"""A shell command that prints how an HTTP server answers, or the error."""


def why_no_network() -> str:
    """Empty where a sandbox can have one and tests can make a host to talk to."""
    missing = [name for name in ("slirp4netns", "ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slirp4netns iproute2 util-linux"
    return "" if os.path.exists("/dev/net/tun") else "needs /dev/net/tun"


@contextlib.contextmanager
def remote_or_skipped(folder: str) -> Iterator[None]:
    """``remote_host``, or the tests that ask for it are skipped by name."""
    if reason := why_no_network():
        pytest.skip(f"network: {reason}")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(remote_host(folder))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network: {' '.join(error.cmd)}: {error.stderr.decode()}")
        yield


@contextlib.contextmanager
def remote_host(folder: str) -> Iterator[None]:
    """It serves the files of ``folder`` meanwhile. Raises ``CalledProcessError`` where no such devices can be made."""
    command = ["unshare", "-n", sys.executable, "-u", "-c", SERVE]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder)
    assert server.stdin is not None
    try:
        own = os.stat("/proc/self/ns/net")
        while os.path.samestat(os.stat(f"/proc/{server.pid}/ns/net"), own):
            pass
        inside = f"nsenter -t {server.pid} -n"
        for line in (
            f"ip link add {DEVICE} type veth peer name eth0 netns {server.pid}",
            f"ip addr add {HERE}/30 dev {DEVICE}",
            f"ip link set {DEVICE} up",
            f"{inside} ip addr add {THERE}/30 dev eth0",
            f"{inside} ip link set eth0 up",
        ):
            subprocess.run(line.split(), check=True, capture_output=True)
        server.stdin.write(b"\n")
        server.stdin.flush()
        asked = ASK.format(THERE, PORT)
        subprocess.run(
            ["bash", "-c", f"until {asked} | grep -q HTTP; do sleep 0.02; done"], check=True, timeout=PATIENCE_S
        )
        yield
    finally:
        server.kill()
        server.wait()
        # The devices would go with the namespace by themselves, but only soon.
        subprocess.run(["ip", "link", "del", DEVICE], check=False, capture_output=True)


@contextlib.contextmanager
def server_at(address: str) -> Iterator[int]:
    """An HTTP server of this host at an address of it; its port."""
    server = ThreadingHTTPServer((address, 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
