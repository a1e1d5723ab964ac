"""Makes `.venv` and installs the package into it; does nothing when that was done already.

    python3 tools/venv.py [EXTRA ...]

Standard library only. `.venv/t1-installed` remembers what was installed: a digest of `pyproject.toml`, the Python
version and the extras. The install is editable, so a changed source file needs no new install. Which pip index is used
is the user's own configuration (`PIP_INDEX_URL`, `PIP_EXTRA_INDEX_URL`, pip.conf): none is named here.
"""

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "t1-installed"
GPU = Path("/dev/nvidiactl")
CPU_BUILD_BYTES = 3 * 2**30
"""Room to download, unpack and keep everything with a CPU build of torch; a CUDA build needs four times it."""


def stop(message: str) -> None:
    raise SystemExit(f"setup: {message}")


def fingerprint() -> str:
    text = (ROOT / "pyproject.toml").read_bytes() + sys.version.encode() + str(ROOT).encode()
    return hashlib.sha256(text).hexdigest()


def installed() -> set[str] | None:
    """Extras installed so far, or None when nothing was, or for another pyproject.toml or Python."""
    if not STAMP.exists() or not PYTHON.exists():
        return None
    digest, *extras = STAMP.read_text().split()
    return set(extras) if digest == fingerprint() else None


def make_venv() -> list[str]:
    """The command that is this venv's pip. Debian may have pip without ensurepip: then the system's pip serves it."""
    have_ensurepip = importlib.util.find_spec("ensurepip") is not None
    have_pip = importlib.util.find_spec("pip") is not None
    if not have_ensurepip and not have_pip:
        stop("this Python has neither ensurepip nor pip. On Debian or Ubuntu: apt-get install python3-venv")
    if VENV.exists():
        print(f"setup: making {VENV.name} anew (pyproject.toml or Python changed)", flush=True)
        shutil.rmtree(VENV)
    options = [] if have_ensurepip else ["--without-pip"]
    subprocess.run([sys.executable, "-m", "venv", *options, str(VENV)], check=True)
    return pip_command()


def pip_command() -> list[str]:
    if (VENV / "bin" / "pip").exists():
        return [str(PYTHON), "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", str(PYTHON)]


def torch_that_pip_would_take(pip: list[str]) -> str:
    """Version, such as "2.13.0+cpu", or "" when pip cannot say beforehand (the install will say why)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirement = next(d for d in project["dependencies"] if d.startswith("torch"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", str(report), requirement]
        done = subprocess.run([*pip, "install", *options], capture_output=True)
        if done.returncode != 0 or not report.exists():
            return ""
        return json.loads(report.read_text())["install"][0]["metadata"]["version"]


def check_torch_and_room(pip: list[str]) -> None:
    """Says before the download how large it will be, and refuses when the disk cannot hold it."""
    version = torch_that_pip_would_take(pip)
    cuda = sys.platform == "linux" and platform.machine() == "x86_64" and version != "" and "+cpu" not in version
    if cuda and not GPU.exists():
        print(
            f"setup: pip will take torch {version}, a CUDA build: several GB, and this machine shows no NVIDIA GPU.\n"
            "       A CPU build is a tenth of it: stop here (Ctrl-C), set PIP_EXTRA_INDEX_URL to PyTorch's own index\n"
            "       for CPU (pytorch.org, 'Get started', compute platform 'CPU', shows it) and run again.",
            flush=True,
        )
    need = CPU_BUILD_BYTES * (4 if cuda else 1)
    free = shutil.disk_usage(ROOT).free
    if free < need:
        stop(f"{free / 2**30:.1f} GiB free in {ROOT}, about {need / 2**30:.0f} GiB needed. Free some and try again")


def main() -> None:
    wanted = set(sys.argv[1:])
    have = installed()
    if have is not None and wanted <= have:
        return
    started = time.monotonic()
    fresh = have is None
    extras = sorted(wanted | (have or set()))
    print(
        f"setup: installing t1actors{extras or ''} into {VENV.name} with Python {platform.python_version()}", flush=True
    )
    try:
        if fresh:
            pip = make_venv()
            check_torch_and_room(pip)
        else:
            pip = pip_command()
        target = "." + (f"[{','.join(extras)}]" if extras else "")
        environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([*pip, "install", "--editable", target], check=True, cwd=ROOT, env=environment)
    except subprocess.CalledProcessError as error:
        stop(f"`{' '.join(map(str, error.cmd))}` failed; its own words are above. It is safe to run again")
    except PermissionError as error:
        stop(f"cannot write {error.filename}: {error.strerror}. Clone the repository to a place that you can write")
    STAMP.write_text(" ".join([fingerprint(), *extras]))
    print(f"setup: done in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
