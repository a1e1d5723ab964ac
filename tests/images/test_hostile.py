"""Layer tars that mean harm: each is refused by the name of its entry, and nothing is written outside."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from t1actors.images.errors import ImageRefused
from t1actors.images.layer import unpack_layer
from tests.images.archives import entry, layer

LINK, HARD, DEVICE, BLOCK = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE


def unpack(tar: bytes, into: Path, max_bytes: int = 1 << 20):
    into.mkdir(exist_ok=True)
    return unpack_layer(io.BytesIO(tar), str(into), where="hostile.tar", max_bytes=max_bytes)


def linked(target: str) -> bytes:
    return layer(entry("way", type=LINK, linkname=target), (entry("way/in"), b"planted"))


@pytest.mark.parametrize(
    ("tar", "says"),
    [
        (layer("/etc/x"), "entry '/etc/x' has an absolute name"),
        (layer("../x"), r"entry '\.\./x' has a name with `\.\.`"),
        (layer("a/../../x"), r"has a name with `\.\.`"),
        (linked("/"), "entry 'way/in' goes through 'way', which is a link"),
        (linked(".."), "entry 'way/in' goes through 'way'"),
        (linked("way2"), "entry 'way/in' goes through 'way'"),
        (layer("a", "a/b"), "entry 'a/b' goes through 'a', which is a link or no directory"),
        (layer(entry("h", type=HARD, linkname="/etc/passwd")), "entry 'h' has an absolute name"),
        (layer(entry("h", type=HARD, linkname="../../etc/passwd")), r"entry 'h' has a name with `\.\.`"),
        (layer(entry("h", type=HARD, linkname="none")), "entry 'h' is a hard link to 'none', which is no file"),
        (layer("d/", entry("h", type=HARD, linkname="d")), "entry 'h' is a hard link to 'd', which is no file"),
        (layer(entry("l", type=LINK, linkname="/"), entry("h", type=HARD, linkname="l/etc/passwd")), "goes through 'l'"),
        (layer(entry("x/null", type=DEVICE, devmajor=1, devminor=3)), "entry 'x/null' is a device"),
        (layer(entry("fake", type=DEVICE, devmajor=0, devminor=0)), "entry 'fake' is a device"),
        (layer(entry("sda", type=BLOCK, devmajor=8)), "entry 'sda' is a device"),
        (layer(entry("far", uid=70_000)), "entry 'far' belongs to 70000:0"),
        (layer(entry(".wh.")), "entry '.wh.' deletes no name"),
        (layer(entry(".wh..")), "entry '.wh..' deletes no name"),
        (layer(entry("a" * 300)), "a part of its name that no file system holds"),
        (layer(entry("x", type=b"9")), "is of a kind that images do not have|not a whole tar"),
        (layer((entry("big"), bytes(2 << 20))), "entry 'big' claims 2,097,152 bytes"),
        (layer((entry("x"), b"12345"))[:600], "not a whole tar|cut short"),
        (b"this is no tar" * 99, "not a whole tar"),
    ],
)  # fmt: skip
def test_it_is_refused_by_the_entrys_name_and_nothing_is_written_outside(tmp_path: Path, tar: bytes, says: str) -> None:
    with pytest.raises(ImageRefused, match=says):
        unpack(tar, tmp_path / "fs")
    assert os.listdir(tmp_path) == ["fs"]


def test_a_name_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    head = entry("././@LongLink", type=tarfile.GNUTYPE_LONGNAME, size=64 << 20).tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(ImageRefused, match="not a whole tar"):
        unpack(head + bytes(4096), tmp_path / "fs", max_bytes=1 << 30)


def test_a_file_that_claims_a_petabyte_of_holes_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(
            entry(
                "holes",
                pax_headers={"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 50), "GNU.sparse.name": "holes"},
            )
        )
    with pytest.raises(ImageRefused, match="entry 'holes'"):
        unpack(out.getvalue(), tmp_path / "fs")


def test_what_docker_images_really_have_is_laid_out(tmp_path: Path) -> None:
    tar = layer(
        "./",
        "./etc/",
        entry("./etc/mtab", type=LINK, linkname="/proc/mounts"),
        entry("out", type=LINK, linkname="../../../outside"),
        (entry("bin/su", mode=0o4755), b"su"),
        entry("bin/again", type=HARD, linkname="./bin/su"),
        entry("dev/null", type=DEVICE, devmajor=1, devminor=3),
        entry("run/pipe", type=tarfile.FIFOTYPE, mode=0o600),
        "opt/old/",
        entry("opt/.wh..wh..opq"),
        entry("var/.wh..wh.plnk"),
    )
    unpacked = unpack(tar, tmp_path / "fs")
    root = tmp_path / "fs"
    assert unpacked.entries == 11
    assert os.readlink(root / "etc/mtab") == "/proc/mounts"
    assert (root / "bin/su").stat().st_mode & 0o7777 == 0o4755
    assert (root / "bin/su").stat().st_ino == (root / "bin/again").stat().st_ino
    assert not (root / "dev").exists()
    assert os.getxattr(root / "opt", "trusted.overlay.opaque") == b"y"
    assert os.listdir(root / "var") == []
