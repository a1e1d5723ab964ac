"""The tool layer: built from what is installed or from wheels, the same bytes each time, and only what the grader can run."""

import sys
import zipfile

import pytest

from t1actors.sandbox.archive import find_file, walk
from t1actors.verify.toolbox import build_tool_layer
from t1actors.verify.tools import find_tools
from t1actors.verify.verdict import VerifyError


@pytest.fixture(scope="module")
def interpreter():
    return find_tools().interpreter


def wheel(directory, name, *, requires=(), python="", files=None):
    directory.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    metadata += "".join(f"Requires-Dist: {text}\n" for text in requires) + (
        f"Requires-Python: {python}\n" if python else ""
    )
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata + "\nText: of no matter\n")
        for path, text in (files or {f"{name}.py": "x = 1\n"}).items():
            archive.writestr(path, text)
    return directory


def test_it_is_the_same_bytes_each_time_and_from_the_cache(interpreter, tmp_path):
    first = build_tool_layer(interpreter, cache=tmp_path)
    again, elsewhere = build_tool_layer(interpreter, cache=tmp_path), build_tool_layer(interpreter)
    assert first.digest == again.digest == elsewhere.digest
    assert any(package.startswith("pytest ") for package in first.packages)
    [kept] = tmp_path.iterdir()
    kept.write_bytes(b"damaged")
    assert build_tool_layer(interpreter, cache=tmp_path).digest == first.digest


def test_it_holds_no_pth_files_no_scripts_of_packages_and_nothing_that_others_may_write(interpreter):
    names = set()
    for member in walk(build_tool_layer(interpreter).archive):
        names.add(member.name)
        assert member.kind in "DEF"
        assert not member.mode & 0o022
    assert {b"pytest", b"uv", b"uvx", b"pip", b"curl", b"apt-get", b"python3", b"cases.py"} <= names
    assert not [name for name in names if name.endswith((b".pth", b".exe")) or name == b"pygmentize"]


def test_packages_come_with_what_they_require_and_wheels_before_what_is_installed(interpreter, tmp_path):
    wheels = wheel(tmp_path, "first", requires=("second>=1", "third; python_version < '3'", "fourth; extra == 'more'"))
    wheel(
        tmp_path,
        "second",
        files={"second/__init__.py": "", "second.pth": "import os", "../up.py": "", "second/a.pyc": ""},
    )
    layer = build_tool_layer(interpreter, packages=("first",), wheels=wheels)
    assert {"first 1.0", "second 1.0"} <= set(layer.packages)
    assert find_file(layer.archive, "lib/first.py") == b"x = 1\n"
    assert find_file(layer.archive, "lib/second/__init__.py") == b""
    assert find_file(layer.archive, "lib/second.pth") is None


@pytest.mark.parametrize(
    ("name", "facts", "says"),
    [
        ("no-such-package", None, "no-such-package is not installed here.*pip install no-such-package"),
        ("not a name!", None, "is no package's name"),
        ("old", {"python": "<3"}, "old 1.0 needs Python <3, and tests are graded with"),
        ("other", {"files": {"other/_x.cpython-38-x86_64-linux-gnu.so": ""}}, "compiled for another Python"),
        ("needy", {"requires": ("no-such-package",)}, "no-such-package is not installed"),
    ],
)
def test_what_the_grader_could_not_run_is_refused_by_name(interpreter, tmp_path, name, facts, says):
    wheels = wheel(tmp_path, name, **facts) if facts else tmp_path
    with pytest.raises(VerifyError, match=says):
        build_tool_layer(interpreter, packages=(name,), wheels=wheels)


def test_an_interpreter_that_cannot_be_run_is_named(tmp_path):
    with pytest.raises(VerifyError, match="no-python: cannot make the tool layer"):
        build_tool_layer(str(tmp_path / "no-python"))
    assert sys.executable != find_tools().interpreter  # built here by one Python, for another
