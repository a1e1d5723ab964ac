"""The canonical archive: deterministic, safe to read, safe to lay out."""

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.sandbox.archive import (
    EMPTY,
    File,
    archive_of_directory,
    archive_of_files,
    find_file,
    subtree,
    walk,
)
from t1actors.sandbox.errors import ArchiveError
from t1actors.sandbox.unpack import remove_tree, unpack


def is_name(name: bytes) -> bool:
    return b"/" not in name and b"\0" not in name and name not in (b".", b"..")


names = st.binary(min_size=1, max_size=12).filter(is_name)
contents = st.one_of(
    st.binary(max_size=64),
    st.integers(0, 3).map(lambda n: bytes(4096 * n)),
    st.lists(st.sampled_from("0axt"), max_size=6).map(
        lambda kinds: b"".join(
            {"0": bytes(4096), "a": b"a" * 4096, "x": bytes(4095) + b"x", "t": b"tail"}[k] for k in kinds
        )
    ),
)
files = st.tuples(st.just("file"), st.sampled_from([0o644, 0o755, 0o600, 0o4755, 0o400]), contents)
links = st.tuples(st.just("link"), st.binary(min_size=1, max_size=20).filter(lambda target: b"\0" not in target))
leaves = st.one_of(files, links)


@st.composite
def trees(draw, depth=2):
    directories = (
        st.tuples(st.just("dir"), st.sampled_from([0o755, 0o700, 0o1777]), trees(depth - 1)) if depth else leaves
    )
    return draw(st.dictionaries(names, st.one_of(leaves, directories), max_size=3))


def write(tree, path: bytes, order):
    """The tree on disk, made in the order ``order`` gives."""
    for name in order(tree):
        node = tree[name]
        at = path + b"/" + name
        if node[0] == "file":
            Path(os.fsdecode(at)).write_bytes(node[2])
            os.chmod(at, node[1])
        elif node[0] == "link":
            os.symlink(node[1], at)
        else:
            os.mkdir(at)
            write(node[2], at, order)
            os.chmod(at, node[1])


def unpacked(archive, path: Path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        unpack(archive, fd)
    finally:
        os.close(fd)


@given(trees())
@settings(max_examples=40, deadline=None)
def test_an_archive_depends_on_the_tree_alone_and_unpacks_to_it(tree):
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as two,
        tempfile.TemporaryDirectory() as three,
    ):
        write(tree, os.fsencode(one), sorted)
        write(tree, os.fsencode(two), lambda names: sorted(names, reverse=True))
        archive = archive_of_directory(Path(one))
        assert archive == archive_of_directory(Path(two))
        unpacked(archive, Path(three))
        assert archive_of_directory(Path(three)) == archive


@given(trees(), st.data())
@settings(max_examples=40, deadline=None)
def test_damaged_bytes_are_refused_or_still_well_formed_but_never_crash(tree, data):
    with tempfile.TemporaryDirectory() as one:
        write(tree, os.fsencode(one), sorted)
        archive = bytearray(archive_of_directory(Path(one)))
    at = data.draw(st.integers(0, len(archive) - 1))
    archive[at] ^= data.draw(st.integers(1, 255))
    try:
        members = list(walk(bytes(archive)))
    except ArchiveError:
        return
    assert (members[0].kind, members[-1].kind) == ("D", "E")


@pytest.mark.parametrize("cut", [0, 3, 6, 11, -1])
def test_a_cut_archive_is_refused(cut):
    archive = archive_of_files({"a/b": b"hello"})
    with pytest.raises(ArchiveError):
        list(walk(archive[:cut]))
    with pytest.raises(ArchiveError, match="bytes after the end"):
        list(walk(archive + b"x"))


def test_names_that_leave_the_directory_are_refused_before_anything_is_written(tmp_path):
    good = archive_of_files({"aa": b"1", "zz": b"evil"})
    for evil in (b"..", b"a/", b"\0z"):
        bad = good.replace(b"zz", evil)
        with pytest.raises(ArchiveError):
            unpacked(bad, tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_holes_do_not_matter_and_a_petabyte_of_them_costs_nothing(tmp_path):
    dense, sparse = tmp_path / "dense", tmp_path / "sparse"
    dense.mkdir(), sparse.mkdir()
    (dense / "f").write_bytes(bytes(1 << 20) + b"end")
    with open(sparse / "f", "wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    assert archive_of_directory(dense) == archive_of_directory(sparse)
    os.truncate(sparse / "f", 1 << 42)
    archive = archive_of_directory(sparse)
    assert len(archive) < 10_000
    target = tmp_path / "target"
    target.mkdir()
    unpacked(archive, target)
    assert (target / "f").stat().st_size == 1 << 42
    assert archive_of_directory(target) == archive


def deep_tree(root: Path, depth: int):
    fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deeper", dir_fd=fd)
        below = os.open("deeper", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_a_tree_3000_deep_is_archived_laid_out_and_deleted():
    # In memory where possible: a disk that others flush makes thousands of directories slow.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        archive_lay_out_and_delete_deep_tree(Path(directory))


def archive_lay_out_and_delete_deep_tree(tmp_path):
    deep_tree(tmp_path, 3000)
    archive = archive_of_directory(tmp_path)
    assert max(m.depth for m in walk(archive)) == 3001
    other = tmp_path / "other"
    other.mkdir()
    unpacked(archive, other)
    assert archive_of_directory(other) == archive
    fd = os.open(tmp_path, os.O_RDONLY)
    remove_tree("deeper", fd)
    remove_tree("other", fd)
    os.close(fd)
    assert os.listdir(tmp_path) == []


def test_links_are_kept_as_links_and_never_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "l").symlink_to(outside)
    archive = archive_of_directory(tree)
    assert b"secret" not in archive
    assert [m.target for m in walk(archive) if m.kind == "L"] == [os.fsencode(outside)]
    # A directory of an archive that meets a link replaces it instead of going through it.
    unpacked(archive_of_files({"l/secret": b"overwritten"}), tree)
    assert (outside / "secret").read_text() == "secret"
    assert (tree / "l" / "secret").read_bytes() == b"overwritten"
    link = tmp_path / "link"
    link.symlink_to(tree)
    with pytest.raises(ArchiveError, match="cannot be archived"):
        archive_of_directory(link)


def test_pipes_and_sockets_are_left_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert archive_of_directory(tmp_path) == archive_with_mode(EMPTY, stat.S_IMODE(tmp_path.stat().st_mode))


def archive_with_mode(archive, mode):
    assert archive == EMPTY
    return archive_of_files({}, directory_mode=mode)


def test_an_archive_from_memory_equals_the_one_from_disk(tmp_path):
    made = archive_of_files({"app/run.sh": File(b"#!/bin/sh\n", 0o755), "app/data/x": b"1", "app/empty/": b""})
    unpacked(made, tmp_path)
    assert archive_of_directory(tmp_path) == made
    assert (tmp_path / "app" / "run.sh").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "paths", [{"../x": b""}, {"/x": b""}, {"a//b": b""}, {"": b""}, {"a": b"", "a/b": b""}, {"a/b": b"", "a": b""}]
)
def test_an_archive_from_memory_refuses_paths_that_are_not_plain(paths):
    with pytest.raises(ArchiveError):
        archive_of_files(paths)


def test_a_subtree_and_a_file_are_found_by_path():
    archive = archive_of_files({"app/a": b"1", "app/sub/b": b"2", "apple": b"3", "app2/sub/b": b"4"})
    assert subtree(archive, "/app") == archive_of_files({"a": b"1", "sub/b": b"2"})
    assert subtree(archive, "app/sub") == archive_of_files({"b": b"2"})
    assert subtree(archive, "/") == archive
    assert [subtree(archive, path) for path in ("/app/a", "/nothing", "sub")] == [None, None, None]
    assert find_file(archive, "/app/sub/b") == b"2"
    assert find_file(archive, "apple") == b"3"
    assert [find_file(archive, path) for path in ("app", "b")] == [None, None]
