"""The set-up script: does nothing twice, trusts no half-made environment, and says beforehand what would end badly."""

import fcntl
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture
def setup(monkeypatch, tmp_path):
    """The script as a module, with a repository of its own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("venv_setup", TOOLS / "venv.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["torch>=2"]\n')
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    return module


def pretend_installed(setup, *extras):
    setup.venv_python().parent.mkdir(parents=True, exist_ok=True)
    setup.venv_python().symlink_to(sys.executable)
    setup.write_stamp(list(extras))


def called(setup, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["venv.py", *arguments])
    return setup.main()


# --- what is there already --------------------------------------------------------------------------------------------


def test_nothing_is_run_when_all_is_installed_whichever_python_calls(setup, monkeypatch):
    pretend_installed(setup, "dev")
    monkeypatch.setattr(setup, "set_up", lambda *a, **k: pytest.fail("nothing was to be done"))
    monkeypatch.setattr("sys.version", "4.0 of another active environment")
    assert called(setup, monkeypatch, "dev") == 0


def test_more_extras_or_a_changed_project_file_are_added_to_what_is_there(setup):
    pretend_installed(setup, "test")
    assert setup.installed() == {"test"}
    (setup.ROOT / "pyproject.toml").write_text('[project]\nname = "y"\n')
    assert setup.installed() is None
    assert setup.unusable() == ""


def test_an_environment_is_made_anew_when_it_was_interrupted_moved_or_lost_its_python(setup, monkeypatch, tmp_path):
    assert setup.unusable() == "there is none yet"
    pretend_installed(setup)
    setup.stamp_path().unlink()
    assert setup.unusable() == "the last set-up was not finished"
    setup.write_stamp([])
    monkeypatch.setattr(setup, "ROOT", tmp_path / "elsewhere")
    assert setup.unusable() == f"the checkout was at {tmp_path}"
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    setup.venv_python().unlink()
    setup.venv_python().symlink_to("/nonexistent/python3")
    assert setup.unusable() == "its Python is gone"
    setup.venv_python().unlink()
    setup.venv_python().write_text("#!/bin/sh\necho 3.99\n")
    setup.venv_python().chmod(0o755)
    assert setup.unusable() == "its Python was replaced"


def test_what_is_being_changed_no_longer_counts_as_installed(setup):
    pretend_installed(setup)
    setup.run(["echo", "Collecting torch"])
    assert setup.installed() == set()
    setup.run(["echo", "Installing collected packages: torch"])
    assert setup.unusable() == "the last set-up was not finished"


def test_a_failure_before_anything_was_changed_leaves_what_works(setup, monkeypatch, capsys):
    pretend_installed(setup)
    monkeypatch.setattr(setup, "pip_command", lambda: ["sh", "-c", "echo Temporary failure in name resolution; exit 1"])
    assert called(setup, monkeypatch, "dev") == 1
    assert "setup: the package index could not be reached" in capsys.readouterr().err
    assert setup.installed() == set()


# --- before anything slow ---------------------------------------------------------------------------------------------


def test_a_host_that_can_make_no_run_is_refused_before_anything_is_made(setup, monkeypatch, capsys):
    answer = json.dumps([["root", False, "user 7 is not root"], ["bash", True, "/usr/bin/bash"]])
    (setup.ROOT / "abilities.py").write_text(f"print({answer!r})\nraise SystemExit(1)\n")
    monkeypatch.setattr(setup, "ABILITIES", setup.ROOT / "abilities.py")
    assert called(setup, monkeypatch, "--for-runs") == 1
    said = capsys.readouterr().err
    assert "no sandbox can be made here, so no run, and nothing was installed (root: user 7 is not root)" in said
    assert not setup.VENV.exists()


def test_an_old_python_is_refused_by_the_shell_and_by_the_script(setup, monkeypatch, tmp_path, capsys):
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        (fake / name).write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit\nexit 1\n')
        (fake / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(TOOLS / "venv.sh")], env={"PATH": str(fake)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "setup: t1actors needs Python 3.11 or later; here python3 is Python 3.9.2." in done.stderr
    monkeypatch.setattr("sys.version_info", (3, 9))
    assert called(setup, monkeypatch) == 1
    assert "t1actors needs Python 3.11 or later; this is" in capsys.readouterr().err


def test_a_python_that_cannot_install_anything_is_refused_with_the_package_to_install(setup, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(setup.Stopped, match="apt-get install python3-venv"):
        setup.make_venv()


def pretend_free(monkeypatch, size_bytes):
    usage = namedtuple("usage", "free")(size_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


def test_a_cuda_build_without_a_gpu_is_announced_before_it_is_downloaded(setup, monkeypatch, capsys):
    monkeypatch.setattr(setup, "torch_that_pip_would_take", lambda pip: "2.13.0")
    monkeypatch.setattr(setup, "GPU", Path("/nonexistent"))
    monkeypatch.setattr(setup.platform, "machine", lambda: "x86_64")
    pretend_free(monkeypatch, 2**40)
    setup.check_torch_and_room([])
    assert "a CUDA build" in capsys.readouterr().out
    monkeypatch.setattr(setup, "torch_that_pip_would_take", lambda pip: "2.13.0+cpu")
    setup.check_torch_and_room([])
    assert "CUDA" not in capsys.readouterr().out


def test_a_disk_without_room_is_refused_with_the_amount_needed(setup, monkeypatch):
    monkeypatch.setattr(setup, "torch_that_pip_would_take", lambda pip: "2.13.0+cpu")
    pretend_free(monkeypatch, 2**30)
    with pytest.raises(setup.Stopped, match=r"1\.0 GiB free .*about 3 GiB needed"):
        setup.check_torch_and_room([])
    with pytest.raises(setup.Stopped, match="about 5 GiB needed"):
        setup.check_torch_and_room([], dev=True)


# --- while it goes on -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("echo '[Errno 28] No space left on device'; exit 1", "the disk is full. Free some in"),
        ("echo 'NewConnectionError: refused'; exit 1", "the package index could not be reached"),
        ("echo 'No matching distribution found for torch'; exit 1", "the index has no build for Python"),
        ("echo 'CERTIFICATE_VERIFY_FAILED'; exit 1", "PIP_CERT names the file to trust"),
        ("kill -9 $$", "most likely because memory ran out"),
        ("echo odd; exit 3", "failed; it is safe to run again"),
    ],
)
def test_what_went_wrong_in_pip_is_said_with_the_way_out(setup, words, told):
    setup.VENV.mkdir()
    with pytest.raises(setup.Stopped, match=re.escape(told)):
        setup.run(["sh", "-c", words])


def test_an_interruption_ends_pip_and_is_status_130(setup, monkeypatch, capsys):
    pretend_installed(setup)
    pid_file = setup.ROOT / "pid"
    monkeypatch.setattr(setup, "pip_command", lambda: ["sh", "-c", f"echo $$ >{pid_file}; echo go; exec sleep 600"])

    def interrupt(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, "_mark_what_changes", interrupt)
    assert called(setup, monkeypatch, "test") == 130
    assert "setup: interrupted. Run the same command again to go on" in capsys.readouterr().err
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert not (setup.VENV / "t1-scratch").exists()


def test_two_set_ups_of_one_checkout_wait_for_each_other(setup, monkeypatch):
    said = io.StringIO()  # what capsys reads while another thread prints may be lost
    monkeypatch.setattr(sys, "stdout", said)
    lock = os.open(setup.ROOT, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    entered = threading.Event()

    def second():
        with setup.alone():
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    while "waiting for it" not in said.getvalue():
        assert not entered.is_set()
        time.sleep(0.01)
    os.close(lock)
    thread.join()
    assert entered.is_set()


def test_settings_that_would_lead_pip_elsewhere_do_not_reach_it(setup, monkeypatch):
    setup.VENV.mkdir()
    for name in ("PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mine")
    environment = setup.pip_environment()
    assert {"PYTHONPATH", "PIP_TARGET", "PIP_REQUIRE_VIRTUALENV"}.isdisjoint(environment)
    assert (environment["PIP_USER"], environment["PIP_INDEX_URL"]) == ("0", "https://mine")
    assert Path(environment["TMPDIR"]).is_relative_to(setup.VENV)
