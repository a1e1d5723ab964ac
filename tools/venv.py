"""Makes `.venv` and installs the package into it; does nothing when that was done already.

    python3 tools/venv.py [--for-runs] [EXTRA ...]

Standard library only. `--for-runs` first makes sure that sandboxes can be made here, so that nobody downloads a gigabyte
to be refused afterwards. `.venv/t1-installed` says what was installed; it is there only while that is whole, so after
an interruption the environment is made anew, from what pip keeps in its cache. The install is editable: a changed
source file needs no new one. Two set-ups of one checkout wait for each other. Which pip index is used is the user's own
configuration (`PIP_INDEX_URL`, `PIP_EXTRA_INDEX_URL`, pip.conf): none is named here.

Exit status 0: `.venv` can be used. 1: it cannot, and the last lines say why. 130: interrupted.
"""

from __future__ import annotations  # an older Python must get as far as being told that it is too old

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shown import Place, Stopped, run_shown

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
ABILITIES = ROOT / "t1actors" / "sandbox" / "shim" / "abilities.py"
GPU = Path("/dev/nvidiactl")
OLDEST = (3, 11)
GIB = 2**30
CPU_BUILD_BYTES = 3 * GIB
"""Room to download, unpack and keep everything with a CPU build of torch; a CUDA build needs four times it."""
DEV_BYTES = 2 * GIB
"""And what only developers need, triton above all."""
INTERRUPTED = 130
UNWANTED = (
    "PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_DRY_RUN",
    "PIP_NO_DEPS", "PIP_REQUIRE_VIRTUALENV", "PIP_QUIET", "PIP_VERBOSE", "PIP_REPORT",
)  # fmt: skip
"""What would make pip install to another place, or not at all."""


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody has to listen
        print(f"setup: {text}", flush=True)


# --- what is there already --------------------------------------------------------------------------------------------


def stamp_path() -> Path:
    return VENV / "t1-installed"


def venv_python() -> Path:
    return VENV / "bin" / "python"


def project_digest() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()


def version_of(python: Path) -> str:
    """Empty if it does not run any more."""
    try:
        command = [str(python), "-I", "-S", "-c", "import sys; print(sys.version.replace(chr(10), ' '))"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read_stamp() -> dict[str, object] | None:
    try:
        stamp = json.loads(stamp_path().read_text())
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def write_stamp(extras: list[str]) -> None:
    stamp = {"place": str(ROOT), "python": version_of(venv_python()), "project": project_digest(), "extras": extras}
    aside = VENV / "t1-installed.new"
    aside.write_text(json.dumps(stamp))
    aside.replace(stamp_path())


def unusable() -> str:
    """Why `.venv` must be made anew; empty when it can be used or added to. An active other environment does not
    matter: what counts is the Python that is in it."""
    if not VENV.exists():
        return "there is none yet"
    stamp = read_stamp()
    if stamp is None:
        return "the last set-up was not finished"
    if stamp.get("place") != str(ROOT):
        return f"the checkout was at {stamp.get('place')}"
    version = version_of(venv_python())
    if not version:
        return "its Python is gone"
    if stamp.get("python") != version:
        return "its Python was replaced"
    return ""


def installed() -> set[str] | None:
    """Extras installed so far, or None when nothing was, or for another pyproject.toml."""
    stamp = read_stamp()
    if stamp is None or unusable() or stamp.get("project") != project_digest():
        return None
    return set(stamp["extras"])  # type: ignore[arg-type]


# --- before anything slow ---------------------------------------------------------------------------------------------


def check_python() -> None:
    if sys.version_info < OLDEST:
        raise Stopped(f"t1actors needs Python 3.11 or later; this is {platform.python_version()} at {sys.executable}")


def check_place() -> None:
    if not os.access(ROOT, os.W_OK):
        raise Stopped(f"{ROOT} cannot be written. Clone the repository to a place that you can write")


def check_sandboxes() -> None:
    """Raises ``Stopped`` where no run can be made, with the part that is missing."""
    if sys.platform != "linux":
        raise Stopped(f"runs need Linux for their sandboxes (a virtual machine will do); this is {platform.system()}")
    done = subprocess.run([sys.executable, "-I", "-S", str(ABILITIES)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    try:
        missing = [f"{name}: {found}" for name, works, found in json.loads(done.stdout) if not works]
    except ValueError:
        return  # it could not even be asked; the run itself will tell
    raise Stopped(
        f"no sandbox can be made here, so no run, and nothing was installed ({missing[0]}).\n"
        "       An ordinary user needs user namespaces, outside of containers; else run as root of the host, or in a\n"
        "       privileged container (Docker: --privileged).\n"
        "       `just setup` installs all the same: reading, reports and `just test` without sandboxes work"
    )


# --- pip --------------------------------------------------------------------------------------------------------------


def make_venv() -> None:
    """Debian may have pip without ensurepip: then the system's pip serves it."""
    have_ensurepip = importlib.util.find_spec("ensurepip") is not None
    if not have_ensurepip and importlib.util.find_spec("pip") is None:
        raise Stopped("this Python has neither ensurepip nor pip. On Debian or Ubuntu: apt-get install python3-venv")
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    options = [] if have_ensurepip else ["--without-pip"]
    run([sys.executable, "-I", "-m", "venv", *options, str(VENV)])


def pip_command() -> list[str]:
    if (VENV / "bin" / "pip").exists():
        return [str(venv_python()), "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", str(venv_python())]


def pip_environment() -> dict[str, str]:
    """The user's, without what would lead pip astray. Its temporary files lie in `.venv`, so that one disk needs room
    and an interrupted set-up leaves nothing elsewhere."""
    kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    scratch = VENV / "t1-scratch"
    scratch.mkdir(exist_ok=True)
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0", "PIP_NO_INPUT": "1", "TMPDIR": str(scratch)}


def torch_that_pip_would_take(pip: list[str]) -> str:
    """Version, such as "2.13.0+cpu", or "" when pip cannot say beforehand (the install will say why)."""
    import tomllib  # not in the Pythons that check_python refuses

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirement = next(d for d in project["dependencies"] if d.startswith("torch"))
    report = VENV / "t1-torch.json"
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", str(report), requirement]
    run([*pip, "--retries", "1", "install", *options])
    return json.loads(report.read_text())["install"][0]["metadata"]["version"]


def check_torch_and_room(pip: list[str], *, dev: bool = False) -> None:
    """Says before the download how large it will be, and refuses when the disk cannot hold it. ``dev``: with triton,
    which a CUDA build of torch has already."""
    version = torch_that_pip_would_take(pip)
    cuda = sys.platform == "linux" and platform.machine() == "x86_64" and "+cpu" not in version
    if not cuda:
        download, disk = (0.7, 2.7) if dev else (0.4, 1.6)
        say(f"torch {version}: about {download} GB to download altogether, {disk} GB on disk")
    elif GPU.exists():
        say(f"torch {version}, a CUDA build: about 3 GB to download altogether, 8 GB on disk")
    else:
        say(
            f"pip will take torch {version}, a CUDA build: about 3 GB to download and 8 GB on disk, and this machine\n"
            "       shows no NVIDIA GPU. A CPU build is a tenth of it: stop here (Ctrl-C), set PIP_EXTRA_INDEX_URL to\n"
            "       PyTorch's own index for CPU (pytorch.org, 'Get started', compute platform 'CPU', shows it) and run\n"
            "       again."
        )
    need = CPU_BUILD_BYTES * (4 if cuda else 1) + (DEV_BYTES if dev else 0)
    free = shutil.disk_usage(ROOT).free
    if free < need:
        raise Stopped(
            f"{free / GIB:.1f} GiB free in {ROOT}, about {need / GIB:.0f} GiB needed. Free some and try again"
        )


def run(command: list[str]) -> None:
    """Raises ``Stopped`` if it fails."""
    log = VENV / "t1-setup.log"
    run_shown(command, Place(ROOT, VENV, log, tuple(_LOCKS)), pip_environment(), _mark_what_changes)


def _mark_what_changes(line: str) -> None:
    if line.startswith("Installing collected packages"):
        stamp_path().unlink(missing_ok=True)  # from here on what is in there is no longer whole


# --- the set-up -------------------------------------------------------------------------------------------------------

_LOCKS: list[int] = []


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One set-up of this checkout at a time. The lock is on the directory itself, so it leaves no file behind."""
    lock = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this checkout goes on; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: then nothing keeps two apart
            pass
        _LOCKS.append(lock)
        yield
    finally:
        _LOCKS.clear()
        os.close(lock)


def set_up(wanted: set[str], *, for_runs: bool) -> None:
    check_python()
    if for_runs:
        check_sandboxes()
    check_place()
    with alone():
        have = installed()
        if have is not None and wanted <= have:
            return
        started = time.monotonic()
        reason = unusable()
        stamp = read_stamp()
        known = set(stamp["extras"]) if stamp is not None else set()  # type: ignore[arg-type]
        extras = sorted(wanted | known)
        package = f"t1actors[{','.join(extras)}]" if extras else "t1actors"
        again = f", made anew because {reason}" if reason and VENV.exists() else ""
        say(f"installing {package} into {VENV} with Python {platform.python_version()}{again}")
        if reason:
            make_venv()
            check_torch_and_room(pip_command(), dev="dev" in extras)
        try:
            target = "." + (f"[{','.join(extras)}]" if extras else "")
            run([*pip_command(), "install", "--progress-bar", "off", "--editable", target])
        finally:
            shutil.rmtree(VENV / "t1-scratch", ignore_errors=True)
        write_stamp(extras)
        say(f"done in {time.monotonic() - started:.0f} s")


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    wanted = {argument for argument in arguments if not argument.startswith("-")}
    try:
        have = installed()
        if have is None or not wanted <= have:
            set_up(wanted, for_runs="--for-runs" in arguments)
    except Stopped as error:
        message, status = str(error), 1
    except OSError as error:
        message, status = f"{error.filename or ROOT}: {error.strerror}. It is safe to run again", 1
    except KeyboardInterrupt:
        message, status = "interrupted. Run the same command again to go on; finished downloads are in pip's cache", 130
    else:
        return 0
    with contextlib.suppress(OSError):
        print(f"setup: {message}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
