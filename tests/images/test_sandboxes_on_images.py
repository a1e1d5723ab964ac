"""A sandbox on an image: its root is the image's, everything that holds a sandbox on the host's /usr holds it too."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import anyio
import pytest

import t1actors
from t1actors.images.image import Config, Image, RootFs, this_architecture
from t1actors.images.prune import prune
from t1actors.images.sources import import_source
from t1actors.images.store import ImageStore
from t1actors.sandbox.archive import archive_of_files, find_file
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxRefused
from t1actors.sandbox.interface import Layer, Limits, RunRequest, SandboxSpec
from t1actors.sandbox.standing import tree_left_at
from tests.images.archives import config_of, docker_save, entry, layer, tar_of
from tests.images.roots import make_root
from tests.sandbox.conftest import Live


class OnImages(Live):
    """As ``Live``, with a store."""

    def __init__(self, root: Path, store: ImageStore) -> None:
        super().__init__(root)
        self.store = store

    def make_backend(self, *, use_cgroups: bool) -> NamespaceBackend:
        return NamespaceBackend(self.root, name="test", use_cgroups=use_cgroups, images=self.store)


@pytest.fixture
def live(host_makes_sandboxes: None, tmp_path: Path, store: ImageStore) -> OnImages:
    return OnImages(tmp_path / "sandboxes", store)


def said(live: OnImages, command: str, *, use_cgroups: bool = True, **spec):
    """What ``command`` prints in a new sandbox, and how it was made."""

    async def body(backend):
        created = await backend.create(SandboxSpec(key="one", **spec))
        return await backend.run("one", RunRequest(key="1", command=command, limit_s=20.0)), created

    return live(body, use_cgroups=use_cgroups)


def test_the_root_is_the_images_and_nothing_of_the_host_is_in_it(live: OnImages, little: str) -> None:
    result, created = said(live, "cat /etc/os-release; ls /; ls -A /usr; type python3 perl", base=little)
    assert created.isolation.base == little
    assert result.text.startswith("ID=little\n")
    assert "python3: not found" in result.text
    top = result.text.split("\n")[1:]
    assert set(top[: top.index("var") + 1]) - {""} == {
        "app", "bin", "dev", "etc", "home", "lib", "lib64", "proc", "root", "run", "sys", "tmp", "usr", "var",
    }  # fmt: skip


def test_root_inside_owns_what_root_owns_in_the_image_and_other_users_what_is_theirs(
    live: OnImages, little: str, root: Path
) -> None:
    result, _ = said(
        live,
        "stat -c '%u:%g %n' /usr/bin/ls /home/user; "
        "chown 1000 /etc/passwd && touch /usr/bin/new && rm /usr/bin/sed && echo done",
        base=little,
    )
    assert result.text == "0:0 /usr/bin/ls\n1000:1000 /home/user\ndone\n"
    assert (root / "usr/bin/sed").exists()
    [only] = live.store.image(little).layers
    assert sorted(os.listdir(live.store.layer_path(only) / "usr/bin")) == sorted(os.listdir(root / "usr/bin"))


def test_whiteouts_and_opaque_directories_hide_what_lies_below(live: OnImages, root: Path, tmp_path: Path) -> None:
    lower = layer("full/", "full/old", "gone", "kept/", "kept/a")
    upper = layer(".wh.gone", "full/", "full/.wh..wh..opq", "full/new", "kept/", "kept/b")
    layers = [tar_of(root), lower, upper]
    digest = import_source(live.store, docker_save(tmp_path / "saved.tar", layers, config_of(layers)))
    result, _ = said(live, "ls /full /kept; ls /gone", base=digest)
    assert result.text == "/full:\nnew\n\n/kept:\na\nb\nls: cannot access '/gone': No such file or directory\n"


def test_the_images_variables_are_there_and_the_specs_come_after_them(
    live: OnImages, root: Path, tmp_path: Path
) -> None:
    tar = tar_of(root)
    config = config_of([tar], Env=["A=image", "B=image", "PATH=/usr/bin"])
    digest = import_source(live.store, docker_save(tmp_path / "saved.tar", [tar], config))
    result, _ = said(live, "echo $A $B $PATH ${LC_ALL-none}", base=digest, env=(("B", "spec"),))
    assert result.text == "image spec /usr/bin none\n"


@pytest.mark.parametrize("merged", [True, False])
def test_bash_is_found_with_and_without_a_merged_usr(live: OnImages, tmp_path: Path, merged: bool) -> None:
    digest = import_source(live.store, make_root(tmp_path / "root", programs=("bash", "ls"), merged=merged))
    assert said(live, "echo $BASH_VERSION", base=digest)[0].exit_code == 0


def test_an_image_without_bash_is_refused_by_name(live: OnImages, tmp_path: Path) -> None:
    digest = import_source(live.store, make_root(tmp_path / "root", programs=("sh", "ls")))
    with pytest.raises(SandboxRefused, match="the image has no bash"):
        said(live, "true", base=digest)


@pytest.mark.parametrize("name", ["dev", "proc"])
def test_an_image_without_a_place_for_what_is_mounted_is_refused_by_name(
    live: OnImages, root: Path, tmp_path: Path, name: str
) -> None:
    for planted in (entry(name, mode=0o755), entry(name, type=tarfile.SYMTYPE, linkname="/tmp")):
        layers = [tar_of(root), layer(planted)]
        digest = import_source(live.store, docker_save(tmp_path / "saved.tar", layers, config_of(layers)))
        with pytest.raises(SandboxRefused, match=f"the image's /{name} is no directory"):
            said(live, "true", base=digest)


ON_AN_OVERLAY = """
set -e
cd "$1"; mkdir lower upper work place
mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work place
exec "$2" -c "$3" place
"""
TRY = """
import anyio, sys
from pathlib import Path
from t1actors.images.sources import import_source
from t1actors.images.store import ImageStore
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.interface import SandboxSpec

async def main():
    here = Path(sys.argv[1]).absolute()
    store = ImageStore(here / "images")
    (here / "root").mkdir()
    digest = import_source(store, here / "root")
    async with (backend := NamespaceBackend(here / "sandboxes", name="test", images=store)).running():
        try:
            await backend.create(SandboxSpec(key="one", base=digest))
        except SandboxUnavailable as error:
            print(error)

anyio.run(main)
"""


def test_a_store_on_a_file_system_that_cannot_map_owners_is_named(host_makes_sandboxes: None, tmp_path: Path) -> None:
    script = ["sh", "-c", ON_AN_OVERLAY, "sh", str(tmp_path), sys.executable, TRY]
    environment = {**os.environ, "PYTHONPATH": str(Path(t1actors.__file__).parents[1])}
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", *script],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert re.search(r"mapping the owners of .*keep images on ext4, xfs, btrfs or tmpfs", done.stdout), done.stderr


def test_an_image_that_is_not_there_is_refused_by_name(live: OnImages) -> None:
    with pytest.raises(SandboxRefused, match=r"base 'sha256:0+' is not known: .*`t1 image list`"):
        said(live, "true", base="sha256:" + "0" * 64)


def test_setuid_files_of_an_image_give_nothing(live: OnImages, root: Path, tmp_path: Path) -> None:
    copied = (root / "usr/bin/id").read_bytes()
    layers = [tar_of(root), layer((entry("usr/bin/suid", mode=0o4755), copied))]
    digest = import_source(live.store, docker_save(tmp_path / "saved.tar", layers, config_of(layers)))
    result, _ = said(
        live, "stat -c %a /usr/bin/suid; grep -c nosuid /proc/self/mounts; cat /proc/self/status", base=digest
    )
    assert result.text.startswith("4755\n")
    assert "NoNewPrivs:\t1" in result.text
    assert "Seccomp:\t2" in result.text


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /",
        "unshare -U true",
        "unshare -m true",
        "mknod /x b 8 0",
        "echo 1 >/proc/sys/vm/drop_caches",
        "echo x >/proc/sys/kernel/core_pattern",
        "cat /proc/1/environ",
        "ls /proc/1/root/",
        "touch /dev/x",
    ],
)
def test_what_would_lead_out_is_refused_there_too(live: OnImages, little: str, command: str) -> None:
    result, _ = said(live, command, base=little)
    assert result.exit_code != 0


def test_the_store_other_trials_and_the_host_are_out_of_reach(live: OnImages, little: str) -> None:
    mark = live.store.root.parent / "canary-77aa"
    mark.write_text("canary-77aa")
    mark.chmod(0o644)
    # The mark is put together inside, or the command itself would be found.
    inside = 'm=canary-77; grep -rls "${m}aa" / --exclude-dir=proc; find / -name "*${m}aa*" 2>/dev/null; echo walked'
    paths = f"ls -d {live.store.root} {live.root} 2>/dev/null"

    async def body(backend):
        other = Layer(archive=archive_of_files({"canary-77aa": b"canary-77aa"}), at="/app")
        await backend.create(SandboxSpec(key="other", base=little, layers=(other,)))
        await backend.create(SandboxSpec(key="one", base=little))
        return await backend.run(
            "one", RunRequest(key="1", command=f"{inside}; {paths}; cat /proc/self/mounts", limit_s=60.0)
        )

    result = live(body)
    assert result.text.startswith("walked\n")
    assert str(live.store.root.parent) not in result.text


@pytest.mark.parametrize("use_cgroups", [True, False])
def test_limits_hold_there_too(live: OnImages, little: str, use_cgroups: bool) -> None:
    fill = "head -c 40000000 /dev/zero > /big; echo $?"
    result, created = said(live, fill, base=little, limits=Limits(disk_mb=16), use_cgroups=use_cgroups)
    assert result.limit_hit == "disk"
    assert "disk=16MB tmpfs" in created.isolation.limits
    hog = "x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo ${#x}"
    result, _ = said(
        live, hog.replace("tr '\\0' x", "cat -v"), base=little, limits=Limits(memory_mb=64), use_cgroups=use_cgroups
    )
    assert result.limit_hit == "memory"


def test_a_sealed_archive_holds_what_was_written_and_deleted_and_nothing_of_the_image(
    live: OnImages, little: str
) -> None:
    async def body(backend):
        await backend.create(SandboxSpec(key="one", base=little))
        await backend.run("one", RunRequest(key="1", command="echo new > /app/new; rm /etc/os-release", limit_s=9.0))
        return await backend.seal("one")

    archive = live(body)
    assert find_file(archive, "/app/new") == b"new\n"
    assert find_file(archive, "/usr/bin/bash") is None
    assert len(archive) < 1000


def test_what_was_written_becomes_a_layer_that_gives_the_same_tree(live: OnImages, little: str, tmp_path: Path) -> None:
    change = (
        "rm /etc/os-release; rm -r /home/user; mkdir -m 700 /home/user; echo x > /home/user/x; chown 1000:7 /home/user/x; "
        "ln /home/user/x /home/user/y; ln -s /etc/passwd /home/user/z; chmod 4755 /home/user/x; mv /root /moved"
    )
    look = "find /home /moved /etc -printf '%p %U:%G %m %y %l\\n' | sort; stat -c %h /home/user/y"

    async def commit(backend):
        await backend.create(SandboxSpec(key="one", base=little))
        done = await backend.run("one", RunRequest(key="1", command=change, limit_s=9.0))
        seen = await backend.run("one", RunRequest(key="2", command=look, limit_s=9.0))
        await backend.commit("one", tmp_path / "layer.tar", max_bytes=1 << 20)
        return done, seen

    done, seen = live(commit)
    assert (done.text, done.exit_code) == ("", 0)
    with (tmp_path / "layer.tar").open("rb") as stream:
        added = live.store.add_layer(stream, where="test")
    layers = (*live.store.image(little).layers, added)
    image = Image(architecture=this_architecture(), config=Config(), rootfs=RootFs(diff_ids=layers))
    again, _ = said(live, look, base=live.store.add_image(image, where="test"))
    assert again.text == seen.text


def test_a_commit_of_more_than_is_allowed_is_refused_by_the_files_name(
    live: OnImages, little: str, tmp_path: Path
) -> None:
    async def body(backend):
        await backend.create(SandboxSpec(key="one", base=little))
        await backend.run("one", RunRequest(key="1", command="cp /usr/bin/bash /app/big", limit_s=9.0))
        await backend.commit("one", tmp_path / "layer.tar", max_bytes=1000)

    with pytest.raises(SandboxRefused, match="/app/big: with this file"):
        live(body)


def test_an_image_in_use_is_not_pruned_and_afterwards_it_is(live: OnImages, root: Path) -> None:
    digest = import_source(live.store, root)

    async def body(backend):
        await backend.create(SandboxSpec(key="one", base=digest))
        kept = prune(live.store, days=-1)
        still = await backend.run("one", RunRequest(key="1", command="ls /usr/bin/ls", limit_s=9.0))
        await backend.kill("one")
        gone = prune(live.store, days=-1)
        with anyio.move_on_after(20.0):  # its shim lets go when it has ended, a moment after it has answered
            while not gone.images:
                await anyio.sleep(0.05)
                gone = prune(live.store, days=-1)
        return kept, still, gone

    kept, still, gone = live(body)
    assert (kept.images, kept.layers) == ((), 0)
    assert still.exit_code == 0
    assert (gone.images, gone.layers) == ((digest,), 1)
    assert gone.size_bytes > 1_000_000


CHANGES = {
    "nothing": "true",
    "a file written": "echo more > /app/more",
    "a file deleted": "rm /app/one",
    "a directory deleted and made again": "rm -r /app/sub; mkdir /app/sub; echo x > /app/sub/x",
    "everything deleted": "rm -r /app",
    "everything deleted and made again": "rm -r /app; mkdir /app; echo x > /app/x",
    "replaced by a link": "rm -r /app; ln -s /etc /app",
    "a mode": "chmod 700 /app/sub",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_grader_on_the_same_image_sees_the_tree_as_the_agent_left_it_and_cannot_change_it(
    live: OnImages, root: Path, tmp_path: Path, change: str
) -> None:
    layers = [tar_of(root), layer("app/", (entry("app/one"), b"1"), "app/sub/", (entry("app/sub/two"), b"2"))]
    digest = import_source(live.store, docker_save(tmp_path / "saved.tar", layers, config_of(layers)))
    look = "find /app/ -printf '%M %p %l\\n' 2>/dev/null | sort"

    async def body(backend):
        await backend.create(SandboxSpec(key="agent", base=digest, workdir="/app"))
        await backend.run("agent", RunRequest(key="1", command=f"cd /; {change}", limit_s=9.0))
        left = await backend.run(
            "agent", RunRequest(key="2", command=f"test -d /app -a ! -L /app && {look}", limit_s=9.0)
        )
        tree = tree_left_at(await backend.seal("agent"), "/app")
        await backend.create(SandboxSpec(key="grader", base=digest, layers=(tree,)))
        seen = await backend.run("grader", RunRequest(key="1", command=look, limit_s=9.0))
        touched = await backend.run("grader", RunRequest(key="2", command="touch /app/planted", limit_s=9.0))
        return left.text, seen.text, touched

    left, seen, touched = live(body)
    assert seen == (left or "drwxr-xr-x /app/ \n")
    assert "Read-only file system" in touched.text


def test_layers_come_out_of_a_tar_in_a_fixed_order(live: OnImages, little: str, tmp_path: Path) -> None:
    async def body(backend):
        for key in ("a", "b"):
            await backend.create(SandboxSpec(key=key, base=little))
            make = "for n in c a b; do echo $n > /app/$n; touch -d @1000 /app/$n; done; touch -d @1000 /app"
            await backend.run(key, RunRequest(key="1", command=make, limit_s=9.0))
            await backend.commit(key, tmp_path / f"{key}.tar", max_bytes=1 << 20)

    live(body)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == ["app", "app/a", "app/b", "app/c"]
