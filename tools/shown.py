"""Runs a slow command, keeps all it says in a log, and shows of it what matters and that time passes.

Guarantees: when ``run_shown`` has returned or raised, the command has ended, whoever interrupted. A failure says its
cause and the way out where the words of pip are known, and the last of its words where not. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BEAT_S = {True: 1.0, False: 15.0}
"""How often it shows that it lives: on a terminal in place, elsewhere by a new line."""
LARGE = re.compile(r"\s*(Downloading|Using cached) \S+ \([\d.]+ [MG]B\)")
"""Of the forty downloads those that take time."""
NO_INDEX = (
    "the package index could not be reached. Look at the network, at HTTPS_PROXY and at `pip config list`\n"
    "       (index-url), and run again"
)
CAUSES = (
    (("No space left on device", "Disk quota exceeded"), "the disk is full. Free some in {root} and run again"),
    (
        ("name resolution", "NewConnectionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "Network is unreachable"),
        NO_INDEX,
    ),
    (("CERTIFICATE_VERIFY_FAILED",), "the index's certificate is not trusted. PIP_CERT names the file to trust"),
    (
        ("No matching distribution", "from versions: none"),
        "the index has no build for Python {python} on {machine}. Another Python (3.11 to 3.13) may have one",
    ),
    (("Read-only file system", "Permission denied"), "{root} cannot be written. Clone the repository to a place that can"),
)  # fmt: skip


class Stopped(Exception):
    """The set-up cannot go on; the message is all that a person needs."""


@dataclass(frozen=True)
class Place:
    """Where a command runs: ``root`` is its directory, ``grows`` the folder that it fills, ``log`` what it said. It holds
    the descriptors ``locks``, so that a lock lasts as long as it, whatever becomes of this process."""

    root: Path
    grows: Path
    log: Path
    locks: tuple[int, ...] = ()


def run_shown(
    command: list[str], place: Place, environment: dict[str, str], heard: Callable[[str], None] = lambda line: None
) -> None:
    """``heard`` is called with each line of its output.

    Raises:
        Stopped: it failed.
    """
    in_place = sys.stdout is not None and sys.stdout.isatty()
    started = time.monotonic()
    measured, size = started, 0
    said: list[str] = []
    with open(place.log, "a") as log, _started(command, place, environment) as process:
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read_into, args=(process, lines), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=BEAT_S[in_place])
            except queue.Empty:
                now = time.monotonic()
                if now - measured >= BEAT_S[False]:
                    measured, size = now, folder_bytes(place.grows)
                _show(f"{now - started:.0f} s" + (f", {size / 2**20:,.0f} MiB written" if size else ""), in_place)
                continue
            if line is None:
                break
            with contextlib.suppress(OSError):  # a full disk is the command's to report
                log.write(line)
                log.flush()
            said.append(line)
            heard(line)
            if LARGE.match(line) or line.startswith("Installing collected packages"):
                _show(line.strip().partition(": ")[0], False)
        status = process.wait()
    if status != 0:
        raise Stopped(_why(command, place, status, said))


@contextlib.contextmanager
def _started(command: list[str], place: Place, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=place.root,
        env=environment,
        pass_fds=place.locks,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _read_into(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _show(text: str, in_place: bool) -> None:
    with contextlib.suppress(OSError):  # nobody has to listen
        if in_place:
            print(f"\r\033[K       {text}", end="\r", flush=True)
        else:
            print(f"       {text}", flush=True)


def folder_bytes(folder: Path) -> int:
    """What the files in it hold, as far as they are still there."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _why(command: list[str], place: Place, status: int, said: list[str]) -> str:
    text = "".join(said)
    tail = "".join(f"       | {line.rstrip()}\n" for line in said[-12:] if line.strip())
    if status == -signal.SIGKILL:
        return "pip was killed, most likely because memory ran out (2 GB are enough). It is safe to run again"
    for words, meaning in CAUSES:
        if any(word in text for word in words):
            found = meaning.format(root=place.root, python=platform.python_version(), machine=platform.machine())
            return f"{found}.\n{tail}       all of its words: {place.log}"
    return f"`{' '.join(command)}` failed; it is safe to run again.\n{tail}       all of its words: {place.log}"
