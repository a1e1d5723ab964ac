"""Importing: every kind of source gives the same layers, checked against their digests, whole or not at all."""

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zstandard

from t1actors.images.errors import ImageMissing, ImageRefused, StoreError
from t1actors.images.image import normal_name
from t1actors.images.prune import prune
from t1actors.images.sources import import_source
from t1actors.images.store import ImageStore
from tests.images.archives import config_of, docker_save, entry, hexed, layer, oci_layout

LOWER = layer("etc/", (entry("etc/name", mode=0o600, uid=7, gid=8), b"little\n"), "gone")
UPPER = layer((entry("etc/name", mode=0o644), b"other\n"), ".wh.gone")
LAYERS = [LOWER, UPPER]
CONFIG = config_of(LAYERS, Env=["A=1", "B=x=y"], WorkingDir="/etc", Cmd=["bash"])


def sources(tmp_path: Path) -> dict[str, Path]:
    return {
        "docker save": docker_save(tmp_path / "saved.tar", LAYERS, CONFIG),
        "an OCI layout": oci_layout(LAYERS, CONFIG).write(tmp_path / "layout"),
        "an OCI layout in a tar": oci_layout(LAYERS, CONFIG).write_tar(tmp_path / "layout.tar"),
        "an OCI layout of several machines": oci_layout(LAYERS, CONFIG, other_platform=True).write(
            tmp_path / "several"
        ),
    }


def test_every_kind_of_archive_gives_the_image_that_its_configuration_names(tmp_path: Path) -> None:
    for number, (kind, source) in enumerate(sources(tmp_path).items()):
        store = ImageStore(tmp_path / f"store{number}")
        digest = import_source(store, source)
        assert digest == f"sha256:{hexed(CONFIG)}", kind
        image = store.image(digest)
        assert image.env == (("A", "1"), ("B", "x=y"))
        assert (image.workdir, image.config.Cmd) == ("/etc", ("bash",))
        assert image.layers == tuple(f"sha256:{hexed(data)}" for data in LAYERS)


def test_a_layer_is_laid_out_with_owners_modes_and_the_overlays_marks(tmp_path: Path, store: ImageStore) -> None:
    image = store.image(import_source(store, sources(tmp_path)["docker save"]))
    lower, upper = map(store.layer_path, image.layers)
    status = (lower / "etc/name").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (7, 8, 0o600)
    gone = os.lstat(upper / "gone")
    assert (gone.st_mode & 0o170000, gone.st_rdev) == (0o020000, 0)


def test_a_root_file_system_is_an_image_of_one_layer_and_its_own_devices_are_left_out(
    store: ImageStore, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "dev").mkdir(parents=True)
    (tree / "bin").mkdir()
    (tree / "bin/tool").write_text("x")
    (tree / "bin/tool").chmod(0o4755)
    os.mknod(tree / "dev/null", 0o020666, os.makedev(1, 3))
    [only] = store.image(import_source(store, tree)).layers
    assert sorted(os.listdir(store.layer_path(only) / "dev")) == []
    assert (store.layer_path(only) / "bin/tool").stat().st_mode & 0o7777 == 0o4755
    os.mknod(tree / "bin/disk", 0o060600, os.makedev(254, 0))
    with pytest.raises(ImageRefused, match="entry 'bin/disk' is a device"):
        import_source(store, tree)


def test_equal_roots_are_one_image(store: ImageStore, root: Path) -> None:
    assert import_source(store, root) == import_source(store, root)
    assert len(store.list()) == 1


def test_a_name_is_the_same_however_it_is_written(store: ImageStore, little: str) -> None:
    store.set_name("debian:12", little, source="test")
    for spelt in ("debian:12", "docker.io/debian:12", "docker.io/library/debian:12", "library/debian:12"):
        assert store.resolve(spelt) == little
    assert normal_name("debian") == "debian:latest"
    assert normal_name("localhost:5000/a/b") == "localhost:5000/a/b:latest"
    assert store.resolve(little) == little
    assert store.resolve("debian:13") is None


# --- what is refused ----------------------------------------------------------------------------------------------------


def changed_layer(tmp_path: Path) -> Path:
    layout = oci_layout(LAYERS, config_of([LOWER, b"another"]))
    return layout.write(tmp_path / "changed")


def changed_blob(tmp_path: Path) -> Path:
    layout = oci_layout(LAYERS, CONFIG)
    name = next(name for name, data in layout.files.items() if data[:2] == b"\x1f\x8b")
    layout.files[name] += b"\0" * 8
    return layout.write(tmp_path / "changed")


def changed_manifest(tmp_path: Path) -> Path:
    layout = oci_layout(LAYERS, CONFIG)
    layout.files[f"blobs/sha256/{layout.manifest.removeprefix('sha256:')}"] += b" "
    return layout.write(tmp_path / "changed")


def changed_config(tmp_path: Path) -> Path:
    path = docker_save(tmp_path / "saved.tar", LAYERS, CONFIG)
    path.write_bytes(path.read_bytes().replace(b'"A=1"', b'"A=2"'))
    return path


def other_machine(tmp_path: Path) -> Path:
    config = CONFIG.replace(b'"linux"', b'"windows"')
    return docker_save(tmp_path / "saved.tar", LAYERS, config)


def two_images(tmp_path: Path) -> Path:
    path = docker_save(tmp_path / "saved.tar", LAYERS, CONFIG)
    one = path.read_bytes()
    at = one.index(b'[{"Config"')
    end = one.index(b"}]", at) + 2
    doubled = (one[at : end - 1] + b", " + one[at + 1 : end]).ljust(end - at)
    path.write_bytes(layer((entry("manifest.json"), doubled)))
    return path


def no_image(tmp_path: Path) -> Path:
    path = tmp_path / "other.tar"
    path.write_bytes(layer("a"))
    return path


def no_tar(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("no tar at all")
    return path


def zstd(tmp_path: Path) -> Path:
    return docker_save(tmp_path / "saved.tar", [b"\x28\xb5\x2f\xfd" + bytes(600)], config_of([b"x"]))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (changed_layer, "the image says sha256:.*; it was changed"),
        (changed_blob, "its bytes have the digest|not a whole gzip file"),
        (changed_manifest, "it was changed or damaged"),
        (changed_config, r"\.json has the digest sha256:.*it was changed or damaged"),
        (other_machine, "an image for windows/.*, and this machine is linux/"),
        (two_images, "holds 2 images .*choose one with --tag"),
        (no_image, r"neither a docker save tar .* nor an OCI layout"),
        (no_tar, "text: not a tar"),
        (zstd, "not a whole"),
        (lambda path: path / "nothing", "nothing: not there"),
    ],
)
def test_what_is_not_what_it_says_is_refused_and_leaves_no_image(store: ImageStore, tmp_path: Path, make, says) -> None:
    with pytest.raises(ImageRefused, match=says):
        import_source(store, make(tmp_path))
    assert store.list() == []


def test_an_image_is_not_kept_before_its_layers(store: ImageStore) -> None:
    with pytest.raises(StoreError, match="add layers before their image"):
        store.add_image(CONFIG, where="test")
    with pytest.raises(ImageMissing, match="is not in"):
        store.set_name("a", f"sha256:{hexed(CONFIG)}", source="test")


def test_a_store_whose_image_was_changed_says_so(store: ImageStore, little: str) -> None:
    path = store.image_file(little)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(StoreError, match="its bytes have another digest"):
        store.image(little)


def test_a_layer_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images", max_layer_bytes=100_000)
    big = layer((entry("big"), bytes(200_000)))
    with pytest.raises(ImageRefused, match=r"entry 'big' claims 200,000 bytes|unpacks to more than 100,000 bytes"):
        import_source(store, docker_save(tmp_path / "a.tar", [big], config_of([big])))
    bomb = b"\0" * 5_000_000
    with pytest.raises(ImageRefused, match="unpacks to more than 100,000 bytes"):
        import_source(store, oci_layout([bomb], config_of([bomb])).write(tmp_path / "bomb"))


# --- interrupted, and two at once ---------------------------------------------------------------------------------------


class Breaks(io.BytesIO):
    """A stream that fails when half of it was read, as a process does that is killed."""

    def read(self, size_bytes: int | None = -1) -> bytes:
        if self.tell() > len(self.getbuffer()) // 2:
            raise KeyboardInterrupt
        return super().read(size_bytes)


def test_an_interrupted_import_leaves_nothing_that_is_taken_for_a_layer(store: ImageStore, root: Path) -> None:
    whole = layer(*((entry(f"file{n}"), bytes([n]) * 40_000) for n in range(9)))
    with pytest.raises(KeyboardInterrupt):
        store.add_layer(Breaks(whole), where="test")
    assert os.listdir(store.root / "layers") == []
    assert os.listdir(store.root / "staging") == []


KILLED = """
import os, sys
from pathlib import Path
from t1actors.images.store import ImageStore
with ImageStore(Path(sys.argv[1])).adding() as place:
    (place / "fs").mkdir()
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_import_left_is_removed_by_the_next_one(store: ImageStore) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(store.root)], check=False)
    assert done.returncode == -9
    assert len(os.listdir(store.root / "staging")) == 1
    store.add_layer(io.BytesIO(LOWER), where="test")
    assert os.listdir(store.root / "staging") == []


IMPORT = """
import sys
from pathlib import Path
from t1actors.images.sources import import_source
from t1actors.images.store import ImageStore
print(import_source(ImageStore(Path(sys.argv[1])), Path(sys.argv[2])))
"""


def test_two_processes_that_import_the_same_end_with_one_image(store: ImageStore, root: Path) -> None:
    command = [sys.executable, "-c", IMPORT, str(store.root), str(root)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert digests == {listed.digest for listed in store.list()}
    assert os.listdir(store.root / "staging") == []


def test_nothing_is_pruned_while_something_is_imported(store: ImageStore, little: str) -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with store.adding():
            inside.set()
            leave.wait()

    worker = threading.Thread(target=work)
    worker.start()
    inside.wait()
    try:
        with pytest.raises(StoreError, match="is being imported or built"):
            prune(store, days=0)
    finally:
        leave.set()
        worker.join()
    prune(store, days=0)


def test_layers_packed_with_zstd_are_unpacked_frames_without_data_too(store: ImageStore, tmp_path: Path) -> None:
    """As tools write them that cut a layer into pieces: several frames, and one that only they understand."""
    tar = layer((entry("a"), bytes(range(256)) * 2000), "b")
    config = config_of([tar])
    pieces = [zstandard.compress(tar[:1000]), b"\x50\x2a\x4d\x18\x04\0\0\0note", zstandard.compress(tar[1000:])]
    image = store.image(import_source(store, docker_save(tmp_path / "saved.tar", [tar], config)))
    assert image.layers
    other = ImageStore(tmp_path / "other")
    packed = docker_save(tmp_path / "packed.tar", [b"".join(pieces)], config)
    digest = import_source(other, packed)
    assert (other.layer_path(other.image(digest).layers[0]) / "a").stat().st_size == 512_000


def test_a_frame_of_zstd_that_would_take_much_memory_or_is_cut_off_is_refused(
    store: ImageStore, tmp_path: Path
) -> None:
    tar = layer((entry("a"), bytes(1 << 20)))
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=28, write_content_size=0)
    ).compressobj()
    for packed, says in ((wide.compress(tar) + wide.flush(), "zstd file"), (zstandard.compress(tar)[:-20], "tar")):
        with pytest.raises(ImageRefused, match=f"not a whole {says}"):
            import_source(store, docker_save(tmp_path / "saved.tar", [packed], config_of([tar])))


def test_without_its_package_zstd_is_refused_with_what_to_install(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImageRefused, match=r"takes the package zstandard: pip install 't1actors\[images\]'"):
        import_source(store, zstd(tmp_path))
