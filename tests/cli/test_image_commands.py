"""`t1 image`: build, import, list, prune, and what they say when something is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from t1actors.cli.main import main
from tests.images.archives import config_of, docker_save, layer
from tests.images.roots import make_root


def task(directory: Path, dockerfile: str) -> Path:
    files = {
        "task.toml": "",
        "instruction.md": "Do.\n",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": "true\n",
    }
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def test_an_image_is_imported_built_on_listed_and_pruned(
    host_makes_sandboxes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"--store={tmp_path / 'store'}"

    def said(*arguments: str) -> str:
        assert main(["image", *arguments, store]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    root = make_root(tmp_path / "root")
    assert re.match(r"little:1  sha256:[0-9a-f]{64}\n", said("import", "little:1", str(root)))
    mine = task(tmp_path / "mine", "FROM little:1\nWORKDIR /app\nRUN echo x > x\n")
    assert re.match(r"sha256:\w+  2 instructions, 1 RUN not kept from before, in ", said("build", str(mine)))
    assert "0 RUN not kept" in said("build", str(mine), "--name", "mine")
    listed = said("list")
    assert re.search(r"\w{12} .* little:1\n", listed)
    assert re.search(r"\w{12} .* mine:latest\n", listed)
    assert listed.endswith(f"2 images in {tmp_path / 'store'}\n")
    assert said("prune", "--days", "0").startswith("removed 0 images")
    assert said("prune", "--days", "0", "--forget", "mine").startswith("removed 1 images")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["import", "a", "nowhere"], 1, "nowhere: not there; give a root file system"),
        (["import", "a", "docker://127.0.0.1:1/a"], 1, "127.0.0.1:1 cannot be reached"),
        (["import", "docker://a", "b"], 2, "NAME 'docker://a': give what a Dockerfile's FROM calls the image"),
        (["import", "a", "b", "--max-gb", "0"], 2, "--max-gb"),
        (["build", "nowhere"], 1, "no such task directory"),
        (["build", "unknown"], 1, "FROM none:1: this image is not in"),
        (["build", "wrong"], 1, "line 3: RUN --mount is not supported"),
        (["prune", "--days", "-1"], 2, "--days"),
        (["prune", "--forget", "x"], 1, "x: no image has this name; `t1 image list` shows"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    task(tmp_path / "unknown", "FROM none:1\nWORKDIR /app\nRUN true\n")
    task(tmp_path / "wrong", "FROM none:1\nWORKDIR /app\nRUN --mount=type=cache,target=/x true\n")
    assert main(["image", *arguments, "--store=store"]) == status
    error = capsys.readouterr().err
    assert error.startswith("t1: ")
    assert says in error


def test_an_archive_of_several_images_is_chosen_from_by_tag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar = layer("a")
    saved = docker_save(tmp_path / "saved.tar", [tar], config_of([tar]), tags=("one:1", "two:1"))
    store = f"--store={tmp_path / 'store'}"
    assert main(["image", "import", "x", str(saved), "--tag", "two:1", store]) == 0
    assert main(["image", "import", "x", str(saved), "--tag", "three:1", store]) == 1
    assert "holds 1 images (one:1, two:1); choose one with --tag" in capsys.readouterr().err
