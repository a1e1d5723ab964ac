"""Dockerfiles built into images: what lands where, what is kept, what fails and how it is named."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest

from t1actors.images.build import BuildLimits, Built, build, missing_images
from t1actors.images.errors import BuildFailed, ImageMissing
from t1actors.images.steps import NO_NETWORK, BuildNetwork
from t1actors.images.store import ImageStore
from t1actors.images.tree import Tree
from t1actors.tasks.dockerfile import parse
from tests.sandbox.conftest import Live

pytestmark = pytest.mark.usefixtures("host_makes_sandboxes")
LIMITS = BuildLimits(deadline_s=60.0, memory_mb=128, disk_mb=64)


class Builder:
    """``self(dockerfile)`` builds in a directory of files; ``read(built, path)`` gives what the image has there."""

    def __init__(self, store: ImageStore, directory: Path) -> None:
        self.store = store
        self.directory = directory

    def file(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def __call__(
        self,
        text: str,
        *,
        limits: BuildLimits = LIMITS,
        host_base: bool = False,
        loop: str = "trio",
        network: BuildNetwork = NO_NETWORK,
    ) -> Built:
        recipe = parse(text, "Dockerfile")
        work = partial(build, self.store, recipe, self.directory, limits=limits, host_base=host_base, network=network)
        return anyio.run(work, backend=loop)

    def tree(self, built: Built) -> Tree:
        layers = [self.store.layer_path(layer) for layer in reversed(built.image.layers)]
        return Tree(layers, on_host=built.image.on_host)

    def read(self, built: Built, path: str) -> str | None:
        _, node = self.tree(built).resolve(path)
        return None if node is None or node.is_directory else node.sources[0].read_text()

    def mode(self, built: Built, path: str) -> str:
        _, node = self.tree(built).resolve(path)
        assert node is not None, path
        return f"{node.status.st_uid}:{node.status.st_gid} {node.status.st_mode & 0o7777:o}"


@pytest.fixture
def builder(store: ImageStore, little: str, tmp_path: Path) -> Builder:
    (tmp_path / "files").mkdir()
    return Builder(store, tmp_path / "files")


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_run_writes_a_layer_with_the_variables_and_the_directory_it_was_given(builder: Builder, loop: str) -> None:
    built = builder('FROM little:1\nENV A="a b"\nWORKDIR /ground\nRUN echo "$A $PWD" > out; id -u >> out\n', loop=loop)
    assert builder.read(built, "/ground/out") == "a b /ground\n0\n"
    assert (built.image.env[-1], built.image.workdir) == (("A", "a b"), "/ground")


def test_what_did_not_change_is_not_run_again(builder: Builder) -> None:
    text = "FROM little:1\nRUN echo $(cat /proc/sys/kernel/random/uuid) > /one\nCOPY a /a\nRUN cat /a > /two\n"
    builder.file("a", "first")
    first, again = builder(text), builder(text)
    assert (first.ran, again.ran) == (2, 0)
    assert again.digest == first.digest
    builder.file("a", "second")
    changed = builder(text)
    assert changed.ran == 1
    assert builder.read(changed, "/one") == builder.read(first, "/one")
    assert builder.read(changed, "/two") == "second"


@pytest.mark.parametrize(
    "change",
    ["ENV A=2\nRUN echo", "ARG A=2\nRUN echo", "WORKDIR /w\nRUN echo", "RUN true\nRUN echo", "RUN echo "],
)  # fmt: skip
def test_a_run_is_another_one_after_anything_that_it_can_see(builder: Builder, change: str) -> None:
    base = "FROM little:1\nENV A=1\n"
    builder(base + "RUN echo x > /x\n")
    assert builder(f"{base}{change} y > /x\n").ran >= 1
    assert builder(base + "RUN echo x > /x\n").ran == 0


def test_deleting_in_a_run_deletes_what_an_earlier_layer_has(builder: Builder) -> None:
    built = builder(
        "FROM little:1\nRUN mkdir /d; echo 1 > /d/a; echo 2 > /d/b\nRUN rm /d/a /etc/os-release\nRUN [ ! -e /d/a ]\n"
    )
    assert builder.read(built, "/d/a") is None
    assert builder.read(built, "/etc/os-release") is None
    assert builder.read(built, "/d/b") == "2\n"


def test_owners_and_modes_that_a_run_sets_are_the_images(builder: Builder) -> None:
    built = builder(
        "FROM little:1\nRUN mkdir -m 750 /data; echo x > /data/f; chown 1000:33 /data /data/f; chmod 4711 /data/f\n"
    )
    assert builder.mode(built, "/data") == "1000:33 750"
    assert builder.mode(built, "/data/f") == "1000:33 4711"


def test_a_program_and_its_arguments_need_no_shell_and_see_no_variables(builder: Builder) -> None:
    built = builder('FROM little:1\nRUN ["touch", "/a $HOME", "/b\'c"]\n')
    assert builder.read(built, "/a $HOME") == ""
    assert builder.read(built, "/b'c") == ""


def test_heredocs_run_as_scripts_and_are_copied_as_files(builder: Builder) -> None:
    built = builder(
        "FROM little:1\nARG WHO=me\n"
        "RUN <<EOF\nset -e\necho one > /one\necho \"$WHO\" > /who\nEOF\n"
        "RUN cat > /two <<-'END' && echo done > /three\n\tline $WHO\n\tEND\n"
        "COPY <<A <<'B' /docs/\nhello \"$WHO\"\nA\nas it is: $WHO\nB\n"
    )  # fmt: skip
    assert [builder.read(built, f"/{name}") for name in ("one", "who", "three")] == ["one\n", "me\n", "done\n"]
    assert builder.read(built, "/two") == "line $WHO\n"
    assert builder.read(built, "/docs/A") == 'hello "me"\n'
    assert builder.read(built, "/docs/B") == "as it is: $WHO\n"


def test_continued_lines_and_comments_are_joined_as_docker_joins_them(builder: Builder) -> None:
    built = builder("FROM little:1\nRUN echo a \\\n # a comment\n\n  b > /x; \\\n  echo 'c\\\nd' > /y\n")
    assert builder.read(built, "/x") == "a b\n"
    assert builder.read(built, "/y") == "cd\n"


# --- COPY ---------------------------------------------------------------------------------------------------------------


def test_copied_files_go_where_docker_puts_them(builder: Builder) -> None:
    for name in ("a.txt", "b.txt", "dir/in/deep", "dir/top"):
        builder.file(name, name)
    built = builder(
        "FROM little:1\nWORKDIR /app\nRUN mkdir /there\n"
        "COPY a.txt .\nCOPY a.txt named\nCOPY *.txt /both/\nCOPY dir /tree\nCOPY dir sub/\nCOPY a.txt /there\n"
        'COPY ["a.txt", "with space"]\nCOPY d?r/[it]* /some/\nCOPY . /all\n'
    )
    expected = {
        "/app/a.txt": "a.txt", "/app/named": "a.txt", "/both/b.txt": "b.txt", "/tree/in/deep": "dir/in/deep",
        "/app/sub/top": "dir/top", "/there/a.txt": "a.txt", "/app/with space": "a.txt", "/some/top": "dir/top",
        "/some/deep": "dir/in/deep", "/all/dir/in/deep": "dir/in/deep",
    }  # fmt: skip
    assert {path: builder.read(built, path) for path in expected} == expected


def test_copied_files_belong_to_root_with_the_mode_they_have_or_are_given(builder: Builder) -> None:
    builder.file("tool", "x", 0o755)
    built = builder("FROM little:1\nCOPY tool /a\nCOPY --chmod=600 --chown=root:root tool /b\n")
    assert (builder.mode(built, "/a"), builder.mode(built, "/b")) == ("0:0 755", "0:0 600")


def test_a_copy_behind_a_link_of_the_image_lands_where_the_link_leads(builder: Builder) -> None:
    builder.file("tool", "x", 0o755)
    built = builder("FROM little:1\nCOPY tool /bin/tool\nRUN [ -L /bin ] && ls /usr/bin/tool /bin/ls\n")
    assert builder.read(built, "/usr/bin/tool") == "x"


def test_directories_that_are_there_keep_what_they_are(builder: Builder) -> None:
    builder.file("f", "x")
    built = builder(
        "FROM little:1\nRUN mkdir -m 700 /home/user/own; chown 1000 /home/user/own\nCOPY f /tmp/f\nCOPY f /home/user/own/\n"
    )
    assert builder.mode(built, "/tmp") == "0:0 1777"
    assert builder.mode(built, "/home/user") == "1000:1000 755"
    assert builder.mode(built, "/home/user/own") == "1000:0 700"


def test_what_dockerignore_names_is_not_copied(builder: Builder) -> None:
    for name in ("keep.py", "drop.pyc", "sub/drop.pyc", "secret/key", "secret/readme", "node/x/y"):
        builder.file(name, name)
    builder.file(".dockerignore", "# comment\n**/*.pyc\nsecret\n!secret/readme\nnode/*\n")
    built = builder("FROM little:1\nCOPY . /all/\n")
    assert builder.read(built, "/all/keep.py") == "keep.py"
    assert builder.read(built, "/all/secret/readme") == "secret/readme"
    gone = ("/all/drop.pyc", "/all/sub/drop.pyc", "/all/secret/key", "/all/node/x/y")
    assert [builder.read(built, path) for path in gone] == [None] * 4
    with pytest.raises(BuildFailed, match=r"line 2: COPY drop\.pyc /x: drop\.pyc: nothing of that name"):
        builder("FROM little:1\nCOPY drop.pyc /x\n")


def test_a_link_in_the_environment_directory_leads_nowhere_outside_it(builder: Builder) -> None:
    (builder.directory.parent / "outside").write_text("secret")
    (builder.directory / "way").symlink_to("../outside")
    (builder.directory / "root").symlink_to("/etc")
    for source in ("way", "root/passwd"):
        with pytest.raises(BuildFailed, match="nothing of that name"):
            builder(f"FROM little:1\nCOPY {source} /x\n")
    built = builder("FROM little:1\nCOPY . /all/\nRUN [ -L /all/way ]\n")
    assert "secret" not in (builder.read(built, "/all/way") or "")


# --- stages -------------------------------------------------------------------------------------------------------------


def test_stages_give_files_to_each_other_and_those_nobody_needs_are_not_built(builder: Builder) -> None:
    built = builder(
        "ARG BASE=little\nFROM ${BASE}:1 AS tools\n"
        "RUN mkdir -p /out/deep; echo made > /out/deep/tool; chown 1000 /out/deep/tool\n"
        "FROM little:1 AS unneeded\nRUN exit 9\n"
        "FROM tools AS more\nRUN echo more > /out/more\n"
        "FROM scratch AS nothing\nCOPY --from=more /out/more /only\n"
        "FROM little:1\nCOPY --from=tools /out /got\nCOPY --from=2 /out/more /got/\nCOPY --from=nothing /only /got/\n"
        "COPY --from=little:1 /etc/os-release /got/\n"
    )
    assert builder.read(built, "/got/deep/tool") == "made\n"
    assert builder.mode(built, "/got/deep/tool").startswith("1000:0")
    assert builder.read(built, "/got/more") == builder.read(built, "/got/only") == "more\n"
    assert builder.read(built, "/got/os-release") == "ID=little\n"
    assert builder.read(built, "/out") is None


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("ARG X=1", "1"),
        ("ARG X", "outer"),
        ("", ""),
        ("ARG X=1\nENV X=2", "2"),
        ("ENV X=a Y=$X\nENV X=$X$Y", "a"),
        ("ENV X=${NONE:-d}-${PATH:+set}", "d-set"),
        ("ENV X='$PATH' ", "$PATH"),
        ('ENV X="a  \\"b\\""', 'a  "b"'),
        ("ENV X \\$literal words", "$literal words"),
    ],
)
def test_variables_have_the_values_that_docker_gives_them(builder: Builder, lines: str, value: str) -> None:
    built = builder(f'ARG X=outer\nFROM little:1\n{lines}\nRUN echo "$X" > /x\n')
    assert builder.read(built, "/x") == f"{value}\n"


def test_cmd_is_recorded_and_not_run(builder: Builder) -> None:
    built = builder("FROM little:1\nCMD exit 3\n")
    assert built.image.config.Cmd == ("/bin/sh", "-c", "exit 3")
    assert built.ran == 0


# --- failures -----------------------------------------------------------------------------------------------------------


def test_an_image_that_is_not_there_is_named_with_how_to_import_it(builder: Builder) -> None:
    with pytest.raises(ImageMissing, match=r"line 1: FROM debian:99: .*`t1 image import debian:99 SOURCE`"):
        builder("FROM debian:99\nRUN true\n")
    recipe = parse("ARG V=99\nFROM debian:$V AS a\nFROM a\nFROM scratch\nFROM little:1\n", "Dockerfile")
    assert missing_images(builder.store, recipe) == ["debian:99"]


def test_a_command_that_fails_is_the_tasks_fault_with_its_line_and_its_output(builder: Builder) -> None:
    with pytest.raises(BuildFailed, match=r"Dockerfile, line 2: RUN echo no; exit 3: exit status 3\nno$") as failed:
        builder("FROM little:1\nRUN echo no; exit 3\n")
    assert (failed.value.step, failed.value.output) == ("RUN echo no; exit 3", "no")
    assert len(builder.store.list()) == 1


def test_a_command_that_wants_a_network_says_that_there_is_none(builder: Builder) -> None:
    with pytest.raises(BuildFailed, match=r"this build has none: allow one.*\n.*Network is unreachable"):
        builder('FROM little:1\nRUN ["bash", "-c", "echo > /dev/tcp/93.184.215.14/80"]\n')


@pytest.mark.parametrize(
    ("command", "limits", "says"),
    [
        (
            "sleep 99",
            BuildLimits(deadline_s=1.0, disk_mb=16),
            "not done within the 1 s that environment.build_timeout_sec",
        ),
        ("head -c 90000000 /dev/zero > /x", BuildLimits(disk_mb=16), r"filled its 16 MB \(environment.storage_mb\)"),
        ("cat /dev/zero | sort", BuildLimits(memory_mb=32, disk_mb=16), "memory"),
    ],
)
def test_limits_of_the_task_hold_and_are_named(builder: Builder, command: str, limits: BuildLimits, says: str) -> None:
    with pytest.raises(BuildFailed, match=says):
        builder(f"FROM little:1\nRUN {command}\n", limits=limits)


def test_a_file_does_not_take_a_directorys_place(builder: Builder) -> None:
    builder.file("dir/etc", "x")
    with pytest.raises(BuildFailed, match="/etc is a directory in the image, and a file would be copied there"):
        builder("FROM little:1\nCOPY dir /\n")
    builder.file("other/bin/x", "x")
    with pytest.raises(BuildFailed, match="/bin is no directory in the image, and one would be copied there"):
        builder("FROM little:1\nCOPY other /\n")


def test_a_failed_build_and_a_good_one_leave_no_sandbox(builder: Builder, tmp_path: Path) -> None:
    builder("FROM little:1\nRUN sleep 99 &\n")
    with pytest.raises(BuildFailed):
        builder("FROM little:1\nRUN sleep 99 & exit 1\n")
    Live(builder.store.root / "staging").assert_nothing_left()


def test_the_hosts_usr_stands_in_only_when_asked_and_the_image_says_so(builder: Builder) -> None:
    built = builder("FROM anything:1\nRUN echo x > /made\nCOPY --from=anything:1 /usr/bin/true /app/\n", host_base=True)
    assert built.image.t1_stands_in_for == "anything:1"
    assert builder.store.base_image(built.digest).warnings == ("the host's own /usr stands in for anything:1",)
    assert builder.read(built, "/made") == "x\n"
