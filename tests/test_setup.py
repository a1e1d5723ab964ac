"""The set-up script: does nothing twice, says what a download will be, and refuses a disk that cannot hold it."""

import importlib.util
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "venv.py"


@pytest.fixture
def setup(monkeypatch, tmp_path):
    """The script as a module, with a repository of its own."""
    spec = importlib.util.spec_from_file_location("venv_setup", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["torch>=2"]\n')
    for name, path in {
        "ROOT": "",
        "VENV": ".venv",
        "PYTHON": ".venv/bin/python",
        "STAMP": ".venv/t1-installed",
    }.items():
        monkeypatch.setattr(module, name, tmp_path / path)
    return module


def pretend_installed(setup, *extras):
    setup.PYTHON.parent.mkdir(parents=True, exist_ok=True)
    setup.PYTHON.write_text("")
    setup.STAMP.write_text(" ".join([setup.fingerprint(), *extras]))


def test_an_installation_counts_only_for_the_same_project_file_python_and_extras(setup, monkeypatch):
    assert setup.installed() is None
    pretend_installed(setup, "test")
    assert setup.installed() == {"test"}
    monkeypatch.setattr("sys.version", "4.0")
    assert setup.installed() is None


def test_nothing_is_run_when_all_is_installed(setup, monkeypatch):
    pretend_installed(setup, "dev")
    monkeypatch.setattr("sys.argv", ["venv.py", "dev"])
    monkeypatch.setattr(setup.subprocess, "run", lambda *a, **k: pytest.fail("nothing was to be run"))
    setup.main()


def test_a_changed_project_file_needs_a_new_installation(setup):
    pretend_installed(setup)
    (setup.ROOT / "pyproject.toml").write_text('[project]\nname = "y"\n')
    assert setup.installed() is None


def test_a_cuda_build_without_a_gpu_is_announced_before_it_is_downloaded(setup, monkeypatch, capsys):
    monkeypatch.setattr(setup, "torch_that_pip_would_take", lambda pip: "2.13.0")
    monkeypatch.setattr(setup, "GPU", Path("/nonexistent"))
    monkeypatch.setattr(setup.platform, "machine", lambda: "x86_64")
    usage = namedtuple("usage", "free")(2**40)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    setup.check_torch_and_room([])
    assert "a CUDA build" in capsys.readouterr().out
    monkeypatch.setattr(setup, "torch_that_pip_would_take", lambda pip: "2.13.0+cpu")
    setup.check_torch_and_room([])
    assert capsys.readouterr().out == ""


def test_a_disk_without_room_is_refused_with_the_amount_needed(setup, monkeypatch):
    monkeypatch.setattr(setup, "torch_that_pip_would_take", lambda pip: "2.13.0+cpu")
    usage = namedtuple("usage", "free")(2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SystemExit, match=r"1\.0 GiB free .*about 3 GiB needed"):
        setup.check_torch_and_room([])
