"""Task directories that others wrote: what is accepted, and what each refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest

from t1actors.sandbox.archive import find_file
from t1actors.tasks.dockerfile import read_dockerfile, run_words
from t1actors.tasks.layers import environment_layers
from t1actors.tasks.reader import read_task, read_tasks, task_digest
from t1actors.tasks.task import Copy, TaskError


def make(directory: Path, **files: str) -> Path:
    """A small valid task; ``files`` replace or add to it: their keys have __ for / and _dot_ for a dot."""
    content = {
        "task.toml": 'version = "1.0"\n',
        "instruction.md": "Make it so.\n",
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n",
        "tests/test.sh": "true\n",
    }
    content.update({key.replace("__", "/").replace("_dot_", "."): value for key, value in files.items()})
    for path, text in content.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    return directory


def test_a_minimal_task_has_the_documented_defaults(tmp_path: Path):
    task = read_task(make(tmp_path / "mine"))
    assert (task.name, task.instruction) == ("mine", "Make it so.")
    assert (task.verifier_timeout_s, task.build_timeout_s, task.agent_timeout_s) == (600.0, 600.0, None)
    assert (task.expected, task.control, task.sub_goals, task.level) == ((), "", 0, 0)
    assert (task.memory_mb, task.storage_mb, task.cpus, task.solution_dir) == (None, None, None, None)


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "1.4"])
@pytest.mark.parametrize("key", ["version", "schema_version"])
def test_both_spellings_of_the_known_versions_are_accepted(tmp_path: Path, key: str, version: str):
    read_task(make(tmp_path, task_dot_toml=f'{key} = "{version}"\n'))


def test_older_sizes_and_newer_ones_mean_the_same(tmp_path: Path):
    old = read_task(make(tmp_path / "a", task_dot_toml='[environment]\nmemory = "2G"\nstorage = "512M"\n'))
    new = read_task(make(tmp_path / "b", task_dot_toml="[environment]\nmemory_mb = 2048\nstorage_mb = 512\n"))
    assert (old.memory_mb, old.storage_mb) == (new.memory_mb, new.storage_mb) == (2048, 512)


def test_unknown_keys_are_kept_and_authors_metadata_is_not_among_them(tmp_path: Path):
    toml = 'colour = "red"\n[metadata]\nauthor = "me"\n[metadata.t1]\nlevle = 3\n[environment]\nsmell = 1\n'
    assert set(read_task(make(tmp_path, task_dot_toml=toml)).unknown_keys) == {
        "colour",
        "environment.smell",
        "metadata.t1.levle",
    }


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"task_dot_toml": "version = \n"}, r"task\.toml: not TOML: .*line 1"),
        ({"task_dot_toml": 'version = "9.0"'}, r"task\.toml: version = '9\.0': expected one of 1\.0 to 1\.4"),
        ({"task_dot_toml": "verifier = 3"}, r"task\.toml: verifier = 3: expected a table"),
        ({"task_dot_toml": '[verifier]\ntimeout_sec = "x"'}, r"verifier\.timeout_sec = 'x': expected a number above 0"),
        ({"task_dot_toml": "[agent]\ntimeout_sec = nan"}, r"agent\.timeout_sec = nan: expected a number above 0"),
        ({"task_dot_toml": "[agent]\ntimeout_sec = -1"}, r"agent\.timeout_sec = -1: expected a number above 0"),
        ({"task_dot_toml": '[environment]\nmemory = "lots"'}, r"environment\.memory = 'lots': expected a size"),
        ({"task_dot_toml": "[environment]\nmemory_mb = 1.5"}, r"environment\.memory_mb = 1\.5: expected a whole number"),
        ({"task_dot_toml": "[environment]\ngpus = 1"}, r"environment\.gpus = 1: sandboxes with GPUs are not supported"),
        ({"task_dot_toml": "[environment]\nallow_internet = 1"}, r"allow_internet = 1: expected true or false"),
        ({"task_dot_toml": '[metadata.t1]\nexpected = ["a", "a"]'}, r"metadata\.t1\.expected.*different assertion ids"),
        ({"task_dot_toml": "[metadata.t1]\nexpected = [1]"}, r"metadata\.t1\.expected = \[1\]: expected a list of strings"),
        ({"instruction_dot_md": "\n \n"}, r"instruction\.md: empty"),
        ({"environment__docker-compose_dot_yaml": ""}, r"docker-compose\.yaml: compose files are not supported"),
        ({"environment__Dockerfile": "FROM x\n"}, r"the working directory is /: .*WORKDIR /app"),
        ({"environment__Dockerfile": "FROM x\nWORKDIR /tests/a\n"}, r"the working directory is /tests/a"),
        ({"environment__Dockerfile": "FROM x\nWORKDIR /app\nCOPY gone /app/\n"}, r"COPY gone: .*gone does not exist"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_file_the_key_and_what_was_expected(tmp_path: Path, files: dict[str, str], says: str):
    with pytest.raises(TaskError, match=says):
        read_task(make(tmp_path, **files))


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"])
def test_a_missing_file_is_named(tmp_path: Path, name: str):
    make(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(TaskError, match=f"{name}: missing"):
        read_task(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path):
    with pytest.raises(TaskError, match="gone: no such task directory"):
        read_task(tmp_path / "gone")


def test_reading_a_folder_of_tasks_keeps_the_good_ones_and_names_the_bad(tmp_path: Path):
    make(tmp_path / "good")
    make(tmp_path / "bad", task_dot_toml="[")
    make(tmp_path / ".half-written")
    tasks, errors = read_tasks(tmp_path)
    assert [task.name for task in tasks] == ["good"]
    assert len(errors) == 1
    assert "bad/task.toml" in str(errors[0])


def test_the_digest_follows_everything_that_a_sandbox_may_show(tmp_path: Path):
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    assert task_digest(first) == task_digest(second)
    seen = {task_digest(first)}

    def changed() -> None:
        assert task_digest(second) not in seen
        seen.add(task_digest(second))

    (second / "tests/test.sh").chmod(0o600)
    changed()
    (second / "tests").chmod(0o700)
    changed()
    (second / "tests/extra").write_text("")
    changed()
    (second / "tests/extra").write_text("x")
    changed()
    (second / "empty").mkdir()
    changed()
    (second / "link").symlink_to("empty")
    changed()


def dockerfile(tmp_path: Path, text: str):
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    return read_dockerfile(path)


def test_the_dockerfile_subset_is_read_with_comments_and_continued_lines(tmp_path: Path):
    environment = dockerfile(
        tmp_path,
        "# a comment\nfrom  debian:12 AS base\nWORKDIR /srv\nWORKDIR app\n"
        'ENV A=1 \\\n  # inside\n  B="two words"\nENV C three four\n'
        'COPY one two/ ./\nCOPY one /etc/one.conf\nCOPY ["a file", "/x/"]\n',
    )
    assert (environment.base, environment.workdir) == ("debian:12", "/srv/app")
    assert environment.env == (("A", "1"), ("B", "two words"), ("C", "three four"))
    assert environment.copies == (
        Copy(("one", "two"), "/srv/app", True),
        Copy(("one",), "/etc/one.conf", False),
        Copy(("a file",), "/x", True),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no FROM"),
        ("WORKDIR /app\n", "line 1: WORKDIR before FROM"),
        ("FROM a\n\n# c\nUSER me\n", "line 4: USER is not supported"),
        ("FROM a\nADD https://x/y /z\n", "line 2: ADD with a URL is not supported"),
        ("FROM a\nRUN --mount=type=cache true\n", "line 2: RUN --mount is not supported"),
        ("FROM a\nRUN cat <<END\nx\n", "line 2: RUN <<END has no line END"),
        ("FROM --platform=windows/amd64 a\n", "FROM --platform=windows/amd64: sandboxes run Linux"),
        ("FROM a\nCOPY --parents c /d\n", "COPY --parents is not supported"),
        ("FROM a\nCOPY --chown=me c /d\n", "COPY --chown=me: only root's"),
        ("FROM a\nCOPY --chmod=1 c /d\n", "COPY --chmod=1: expected a mode"),
        ("FROM a\nCOPY ../secret /d\n", "paths inside the environment directory"),
        ("FROM a\nCOPY a\n", "expected COPY source... target"),
        ("FROM a\nCOPY [1\n", "not a JSON list"),
        ("FROM a\nENV X\n", "expected ENV NAME=value"),
        ("FROM a\nENV X=${Y%z}\n", "only :-, :. and :. are supported"),
        ("# escape=`\nFROM a\n", "line 1: the escape character ` is not supported"),
        ("FROM a\nWORKDIR\n", "WORKDIR needs an argument"),
        ('FROM a\nWORKDIR "/a\n', "line 2: no closing quotation"),
        ("FROM a\nFLY away\n", "'FLY' is no Dockerfile instruction"),
    ],
)
def test_a_dockerfile_refusal_names_line_and_instruction(tmp_path: Path, text: str, says: str):
    with pytest.raises(TaskError, match=says):
        dockerfile(tmp_path, text)


def test_stages_flags_and_heredocs_are_read_as_they_are_written(tmp_path: Path):
    environment = dockerfile(
        tmp_path,
        "# syntax=docker/dockerfile:1\nARG V=3.12\nFROM python:$V-slim AS Tools\n"
        "RUN echo $((1<<2)) '<<A B' \\\n  && python3 - <<'PY' > /out\nprint(1)\nPY\n"
        'FROM tools\nENV HOME_OF=/srv\nWORKDIR $HOME_OF/app\nCOPY --from=tools --chmod=755 /out /out\nCMD ["bash"]\n',
    )
    recipe = environment.recipe
    assert recipe is not None
    assert environment.takes_a_build
    assert (environment.base, environment.workdir, environment.copies, environment.env) == (
        "python:3.12-slim", "/srv/app", (), (),
    )  # fmt: skip
    tools, last = recipe.stages
    assert (tools.name, last.base) == ("tools", "tools")
    [run] = tools.instructions
    assert (run.line, [document.text for document in run.heredocs]) == (4, ["print(1)\n"])
    assert run_words(run) == ["/bin/sh", "-c", "echo $((1<<2)) '<<A B'   && python3 - <<'PY' > /out\nprint(1)\nPY"]
    assert dict(last.instructions[2].flags) == {"from": "tools", "chmod": "755"}


def test_a_file_of_from_workdir_copy_and_env_alone_takes_no_build(tmp_path: Path):
    assert not dockerfile(tmp_path, "FROM x\nWORKDIR /app\nCOPY a /b\nENV A=1\nCMD bash\n").takes_a_build
    for line in ("RUN true", "ARG A", "COPY *.py /b", "COPY --chmod=600 a /b", "ENV A=$B", "FROM y"):
        assert dockerfile(tmp_path, f"FROM x\nWORKDIR /app\n{line}\n").takes_a_build, line
    (tmp_path / ".dockerignore").write_text("a\n")
    assert dockerfile(tmp_path, "FROM x\nWORKDIR /app\n").takes_a_build


def test_copied_files_land_where_docker_would_put_them(tmp_path: Path):
    make(
        tmp_path,
        environment__Dockerfile="FROM x\nWORKDIR /app\nCOPY files .\nCOPY one two /data/\n"
        "COPY one /etc/renamed\nCOPY one /tmp/x\n",
        environment__files__deep__a="A",
        environment__one="1",
        environment__two="2",
    )
    task = read_task(tmp_path)
    layers = environment_layers(task)
    assert [layer.at for layer in layers] == ["/app", "/data", "/data", "/etc", "/tmp"]
    assert find_file(layers[0].archive, "deep/a") == b"A"
    assert find_file(layers[2].archive, "two") == b"2"
    assert find_file(layers[3].archive, "renamed") == b"1"
    assert [layer.at for layer in environment_layers(task, outside="/app")] == ["/data", "/data", "/etc", "/tmp"]
