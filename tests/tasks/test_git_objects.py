"""Every object of real repositories is read, however git keeps it, and damaged files are refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from t1actors.tasks import git_objects as module
from t1actors.tasks.git_objects import GitDataError, git_objects, is_object_file


def git(place: Path, *arguments: str, text: str = "") -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(place), *identity, *arguments], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout


def repository(place: Path, *options: str) -> Path:
    """A few commits whose blobs are near enough to become deltas, a tag, and one blob that nothing refers to."""
    place.mkdir()
    git(place, "init", "-q", "-b", "main", *options)
    lines = [f"line {number} of a text that is long enough\n" for number in range(400)]
    for version in range(6):
        lines[version * 50] = f"changed in version {version}\n"
        (place / "text.txt").write_text("".join(lines))
        (place / f"other{version}").write_text(f"{version}\n")
        git(place, "add", "-A")
        git(place, "commit", "-q", "-m", f"version {version}")
    git(place, "tag", "-a", "-m", "a tag", "v1")
    git(place, "hash-object", "-w", "--stdin", text="nobody refers to this\n")
    return place


def files_of(place: Path) -> dict[str, bytes]:
    return {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def names_of(place: Path) -> dict[str, str]:
    listed = git(place, "cat-file", "--batch-check", "--batch-all-objects").splitlines()
    return {line.split()[0]: line.split()[1] for line in listed}


@pytest.mark.parametrize("options", [(), ("--object-format=sha256",)], ids=["sha1", "sha256"])
@pytest.mark.parametrize("packing", ["loose", "packed", "by name"])
def test_every_object_is_read_as_git_reads_it(tmp_path: Path, options: tuple[str, ...], packing: str):
    place = repository(tmp_path / "work", *options)
    if packing == "packed":
        git(place, "repack", "-q", "-a", "-d", "-f")
    if packing == "by name":
        git(place, "-c", "repack.useDeltaBaseOffset=false", "repack", "-q", "-a", "-d", "-f")
    found = {held.name: held for held in git_objects(files_of(place))}
    assert {name: held.kind for name, held in found.items()} == names_of(place)
    assert all(held.place == ".git" for held in found.values())
    for name, held in found.items():
        if held.kind != "tree":
            assert held.data == git(place, "cat-file", held.kind, name).encode()
    assert any(held.data == b"nobody refers to this\n" for held in found.values())


def test_packs_that_were_compared_held_deltas(tmp_path: Path):
    place = repository(tmp_path / "work")
    git(place, "repack", "-q", "-a", "-d", "-f")
    pack = next((place / ".git/objects/pack").glob("*.idx"))
    assert "chain length" in git(place, "verify-pack", "-v", str(pack))


def test_a_cut_or_changed_pack_is_refused_by_name(tmp_path: Path):
    place = repository(tmp_path / "work")
    git(place, "repack", "-q", "-a", "-d", "-f")
    files = files_of(place)
    path = next(name for name in files if name.endswith(".pack"))
    for spoiled in (files[path][:200], b"PACK\0\0\0\2", b"", b"PACK\0\0\0\2\0\0\0\1" + b"\x00" * 40, b"x" * 300):
        with pytest.raises(GitDataError, match="pack"):
            list(git_objects({path: spoiled}))


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = repository(tmp_path / "work")
    monkeypatch.setattr(module, "LARGEST_BYTES", 10_000)
    with pytest.raises(GitDataError, match="more than 0 MiB unpacked"):
        list(git_objects(files_of(place)))


def test_only_gits_own_files_are_taken_for_objects():
    assert is_object_file("app/.git/objects/ab/" + "0" * 38)
    assert is_object_file("objects/pack/pack-" + "0" * 40 + ".pack")
    assert not is_object_file("app/objects/ab/readme")
    assert not is_object_file("app/.git/objects/pack/pack-" + "0" * 40 + ".idx")
