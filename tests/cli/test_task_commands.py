"""`t1 task show` and `t1 task check`: what they print of good tasks and bad ones, and with which exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from t1actors.cli.main import main
from t1actors.tasks.record import read_record
from tests.sandbox.remote import why_no_network
from tests.verify.test_task_check import CHECKS, SOLUTION, make

IN_SANDBOXES = pytest.mark.usefixtures("host_makes_sandboxes")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Five tasks: sound, with a reference that fails, not readable, with needs, and one whose answer lies about."""
    directory = tmp_path / "tasks"
    make(
        directory / "sound",
        toml='[metadata.t1]\nexpected = ["made", "right"]\nlevle = 3\n[environment]\nskills_dir = "x"\n',
    )
    make(directory / "wrong", solution="echo it is 42 > made.txt; cat made.txt\n")
    make(directory / "unreadable")
    (directory / "unreadable/task.toml").write_text("[environment]\ngpus = 1\n")
    make(directory / "greedy", toml='[metadata.t1]\nprograms = ["no-such-tool"]\n[environment]\nmemory = "2G"\n')
    make(directory / "open", copy_dot_sh=SOLUTION)
    return directory


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["task", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@IN_SANDBOXES
def test_check_says_a_line_a_task_and_which_part_failed_with_its_output(
    tasks: Path, capsys: pytest.CaptureFixture[str]
):
    status, out, _ = said(capsys, "check", tasks)
    lines = out.splitlines()
    assert status == 1
    heads = [line.partition(":")[0] for line in lines if line.startswith(("ok", "FAIL"))]
    assert heads == ["FAIL  greedy", "FAIL  open", "ok    sound", "FAIL  unreadable", "FAIL  wrong"]
    by_name = {line.split()[1].rstrip(":"): line for line in lines if line.startswith(("ok", "FAIL"))}
    assert "needs: needs 2048 MB of memory, a sandbox has 256" in by_name["greedy"]
    assert "needs no-such-tool, and the host's /usr has none" in by_name["greedy"]
    assert "leak: /app/copy.sh holds solution/solve.sh" in by_name["open"]
    assert "the reference passes 2 assertions, doing nothing 0; 1 run" in by_name["sound"]
    assert "read: task.toml: environment.gpus = 1: sandboxes with GPUs are not supported" in by_name["unreadable"]
    assert "reference: the reference fails 1 of 3 assertions: right" in by_name["wrong"]
    after = lines[lines.index(by_name["wrong"]) :]
    assert "      | it is 42" in after
    assert "      | looked at /app" in after
    assert "      note: metadata.t1.levle means nothing here" in lines
    assert "      note: environment.skills_dir has no effect here" in lines
    assert lines[-1] == "1 of 5 tasks passed"


@IN_SANDBOXES
def test_check_keeps_what_it_found_beside_the_tasks_and_show_tells_it(tasks: Path, capsys: pytest.CaptureFixture[str]):
    assert said(capsys, "check", tasks / "sound", tasks / "wrong", "--runs", "2", "--jobs", "1")[0] == 1
    sound, wrong = read_record(tasks / "sound"), read_record(tasks / "wrong")
    assert sound is not None
    assert (sound.passed, sound.expected, sound.runs) == (True, ("made", "right"), 2)
    assert wrong is not None
    assert (wrong.passed, wrong.failed_runs) == (False, 2)
    assert read_record(tasks / "greedy") is None
    assert "check        passed, 2 runs on namespaces" in said(capsys, "show", tasks / "sound")[1]
    shown = said(capsys, "show", tasks / "wrong")[1]
    assert "check        failed: reference: the reference fails 1 of 3 assertions in 2 of 2 runs: right" in shown
    (tasks / "sound/instruction.md").write_text("something else\n")
    assert "check        not since it changed" in said(capsys, "show", tasks / "sound")[1]


@IN_SANDBOXES
def test_check_as_json_is_one_list_with_the_same_facts(tasks: Path, capsys: pytest.CaptureFixture[str]):
    status, out, _ = said(capsys, "check", tasks / "sound", tasks / "wrong", tasks / "unreadable", "--json")
    sound, wrong, unreadable = json.loads(out)
    assert status == 1
    assert (sound["task"], sound["passed"], sound["expected"], sound["flake_rate"]) == (
        "sound",
        True,
        ["made", "right"],
        0.0,
    )
    assert wrong["problems"][0]["part"] == "reference"
    assert wrong["problems"][0]["output"] == "it is 42\nlooked at /app"
    assert (unreadable["digest"], unreadable["problems"][0]["part"]) == ("", "read")


@IN_SANDBOXES
def test_a_sound_task_alone_is_status_0(tasks: Path, capsys: pytest.CaptureFixture[str]):
    status, out, _ = said(capsys, "check", tasks / "sound")
    assert status == 0
    assert out.startswith("ok    sound: ")


@IN_SANDBOXES
def test_without_the_hosts_root_as_stand_in_an_image_is_needed(tasks: Path, capsys: pytest.CaptureFixture[str]):
    status, out, _ = said(capsys, "check", tasks / "sound", "--set", "sandbox.host_base=false")
    assert status == 1
    assert out.startswith("FAIL  sound: needs: its image debian:12 is not in ")


def test_show_says_what_was_read_and_what_can_run_it(tasks: Path, capsys: pytest.CaptureFixture[str]):
    status, out, _ = said(capsys, "show", tasks / "sound", tasks / "greedy")
    assert status == 0
    first, second = out.split("\n\n")
    for line in (
        "instruction  15 characters: Write made.txt.",
        "environment  FROM debian:12, working directory /app",
        "limits       verifier 600 s, build 600 s, no network",
        "solution     solution/solve.sh",
        "expected     2 (task.toml): made, right",
        "baseline     none known",
        f"check        never; `t1 task check {tasks / 'sound'}`",
        "unknown key  metadata.t1.levle; did you mean metadata.t1.level?",
        "no effect    environment.skills_dir",
        "namespaces   can run it",
        "docker       with --set sandbox.backend=docker: can run it",
    ):
        assert f"  {line}\n" in f"{first}\n"
    assert "namespaces   no: needs 2048 MB of memory" in second
    assert "docker       with --set sandbox.backend=docker: no: needs 2048 MB of memory" in second
    assert "limits       2048 MB of memory, verifier 600 s" in second


def test_show_says_first_what_the_configured_backend_lacks(tasks: Path, capsys: pytest.CaptureFixture[str]):
    own = ("--set", "sandbox.backend=docker", "--set", "sandbox.host_base=false")
    _, out, _ = said(capsys, "show", tasks / "sound", *own)
    docker, namespaces = out.splitlines()[-2:]
    assert docker.startswith("  docker       no: finding the image debian:12: the Docker daemon at")
    assert namespaces.startswith(
        "  namespaces   with --set sandbox.backend=namespaces: no: its image debian:12 is not in"
    )


def test_show_as_json_has_the_same_facts(tasks: Path, capsys: pytest.CaptureFixture[str]):
    (found,) = json.loads(said(capsys, "show", tasks / "sound", "--json")[1])
    assert (found["task"], found["expected"], found["expected_from"]) == ("sound", ["made", "right"], "task.toml")
    assert found["backends"] == {"namespaces": [], "docker": []}
    assert found["backend"] == "namespaces"
    assert len(found["digest"]) == 64
    assert found["unknown_keys"] == {"metadata.t1.levle": "metadata.t1.level"}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["check"], 2, "name a task's folder, or a directory of tasks"),
        (["show"], 2, "name a task's folder, or a directory of tasks"),
        (["check", "gone"], 1, "gone: no such directory; name a task's folder"),
        (["check", "empty"], 1, "empty: no task: it has neither a task.toml nor a folder"),
        (["check", "empty", "--runs", "0"], 2, "--runs 0: must be at least 1"),
        (["check", "empty", "--jobs", "0"], 2, "--jobs 0: must be at least 1"),
        (["check", "empty", "--preset", "dmo"], 1, "empty: no task"),
        (["show", "old"], 1, "a task in the layout of Terminal-Bench 1"),
        (["show", "bad"], 1, "bad/task.toml: not TOML"),
    ],
)
def test_wrong_calls_are_told_in_a_line(
    arguments: list[str],
    status: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "old", "bad"):
        (tmp_path / name).mkdir()
    (tmp_path / "old/task.yaml").write_text("x: 1\n")
    (tmp_path / "bad/task.toml").write_text("[")
    found, out, err = said(capsys, *arguments)
    assert found == status
    assert words in err
    assert out == ""


@IN_SANDBOXES
def test_a_record_that_cannot_be_kept_is_told(tasks: Path, capsys: pytest.CaptureFixture[str]):
    (tasks / ".checked").write_text("in the way")
    status, _, err = said(capsys, "check", tasks / "sound")
    assert status == 1
    assert "what was found of" in err
    assert "cannot be kept beside it" in err


@IN_SANDBOXES
def test_a_task_that_asks_for_a_network_has_one_where_it_is_allowed_and_never_while_it_is_graded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    if reason := why_no_network():
        pytest.skip(f"network: {reason}")
    # The device of a sandbox's network: the solution finds it, the tests do not.
    make(
        tmp_path / "online",
        toml="[environment]\nallow_internet = true\n",
        checks=CHECKS.replace("finish", 'assert alone sh -c "! grep -q tap0 /proc/net/dev"\nfinish'),
        solution=f"grep -q tap0 /proc/net/dev || exit 1\n{SOLUTION}",
    )
    shown = said(capsys, "show", tmp_path / "online")[1]
    assert "limits       verifier 600 s, build 600 s, asks for a network\n" in shown
    assert "namespaces   no: it asks for a network" in shown
    allowed = ("--set", "sandbox.network=tasks")
    assert "namespaces   can run it" in said(capsys, "show", tmp_path / "online", *allowed)[1]
    status, out, _ = said(capsys, "check", tmp_path / "online")
    assert (status, out.splitlines()[0].partition(" (")[0]) == (1, "FAIL  online: needs: it asks for a network")
    status, out, _ = said(capsys, "check", tmp_path / "online", *allowed)
    assert (status, out.splitlines()[0].partition(",")[0]) == (0, "ok    online: the reference passes 4 assertions")
