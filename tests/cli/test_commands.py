"""The command line: what it prints, where it refuses, and with which exit status."""

import json
import re
import subprocess
import sys

import msgspec
import pytest

from t1actors.cli import checks_place, reporting, run
from t1actors.cli.checks import Check
from t1actors.cli.main import _load, app, main
from t1actors.cli.task_make import parse_levels
from t1actors.events import ActorUpdated
from t1actors.log.filelog import FileLog
from tests.observe.recorded import Recorder, whole_run


def commands(parent, path=()):
    """The path of every command there is."""
    for name in parent:
        if not name.startswith("-"):
            found = (*path, name)
            inner = list(commands(parent[name], found))
            yield from inner or [found]


@pytest.fixture
def recorded(tmp_path):
    """A finished run on disk."""
    directory = tmp_path / "runs" / "made"
    recorder = Recorder(FileLog(directory / "log", "process"))
    whole_run(recorder)
    recorder.close()
    return directory


def test_all_commands_of_the_readme_are_there():
    wanted = {"run", "replay", "report", "runs", "doctor", "config show", "grade", "sandbox reap", "serve"}
    wanted |= {f"task {name}" for name in ("show", "check", "make")}
    wanted |= {f"log {name}" for name in ("cat", "tail", "check", "export", "salvage", "sweep", "trim")}
    wanted |= {f"image {name}" for name in ("build", "import", "list", "prune")}
    assert wanted | {"warmstart demos", "warmstart make", "tito stitch"} == {" ".join(path) for path in commands(app)}


@pytest.mark.parametrize("path", [" ".join(p) for p in commands(app)])
def test_every_command_explains_itself_with_an_example(path, capsys):
    assert main([*path.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"t1 {path}" in text
    assert f"Example: t1 {path}" in text


def test_every_example_is_taken_by_the_command_line():
    _load(app)
    examples = set()
    for path in commands(app):
        node = app
        for name in path:
            node = node[name]
            examples |= set(re.findall(r"Example: `t1 ([^`]+)`", node.help))
    assert len(examples) > 12
    for example in sorted(examples):
        app.parse_args(example, exit_on_error=False, print_error=False)


def test_the_list_of_commands_loads_no_torch_and_says_what_each_is_for():
    code = "import sys; from t1actors.cli.main import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Re-execute a step from the log" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], 'Unknown command "nope"'),
        (["run", "--frob"], "--frob"),
        (["run", "--display", "loud"], "loud"),
        (["run", "--tasks", "a", "--set", "tasks.source=b"], "--tasks a is short for --set tasks.source"),
        (["run", "--resume", "runs/x", "--preset", "demo"], "a resumed run keeps its own configuration"),
        (["run", "--resume", "runs/x", "--set", "run.seed=1", "--dir", "y"], "with --set, --dir"),
        (["run", "--preset", "dmo"], "did you mean 'demo'"),
        (["run", "--set", "train.actor.clipp=1"], "did you mean train.actor.clip?"),
        (["config", "show", "--set", "rollout.batch_size=x"], "rollout.batch_size"),
        (["replay", "somewhere"], "--step N, or --all"),
        (["task", "make", "x", "--levels", "0-9"], "levels are 1 to 5"),
        (["task", "make", "x", "--count", "0"], "at least 1"),
        (["log", "cat"], "--run"),
    ],
)
def test_a_wrong_call_is_one_clear_line_and_status_2(arguments, words, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    "arguments", [["report"], ["log", "cat"], ["log", "check"], ["replay", "--step", "1"]], ids=" ".join
)
def test_a_directory_without_a_run_is_status_1_and_says_how_to_find_one(arguments, tmp_path, capsys):
    assert main([*arguments[:1], *arguments[1:2], str(tmp_path), *arguments[2:]] if arguments[0] == "log" else
                [arguments[0], str(tmp_path), *arguments[1:]]) == 1  # fmt: skip
    assert "no run here" in capsys.readouterr().err


def test_config_show_prints_a_file_that_can_be_used(tmp_path, capsys):
    assert main(["config", "show", "--preset", "smoke", "--set", "run.seed=4"]) == 0
    file = tmp_path / "mine.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["config", "show", "--config", str(file)]) == 0
    assert f"seed = 4  # {file}" in capsys.readouterr().out


def test_task_make_writes_the_same_tasks_every_time(tmp_path, capsys):
    for name in ("one", "two"):
        assert main(["task", "make", str(tmp_path / name), "--count", "3", "--levels", "1,4", "--seed", "5"]) == 0
    assert "3 tasks in" in capsys.readouterr().out
    one = {p.relative_to(tmp_path / "one"): p.read_bytes() for p in (tmp_path / "one").rglob("*") if p.is_file()}
    two = {p.relative_to(tmp_path / "two"): p.read_bytes() for p in (tmp_path / "two").rglob("*") if p.is_file()}
    assert one == two
    assert len([p for p in one if p.name == "task.toml"]) == 3


def test_levels_are_written_as_numbers_and_ranges():
    assert parse_levels("1,2,3") == [1, 2, 3]
    assert parse_levels("1-3,5") == [1, 2, 3, 5]


def lines_of(capsys, *arguments):
    assert main(["log", "cat", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_log_cat_filters_by_trial_step_actor_and_kind(recorded, capsys):
    run_dir = str(recorded)
    everything = lines_of(capsys, run_dir)
    trial = lines_of(capsys, run_dir, "--trial", "s3.t1")
    assert 0 < len(trial) < len(everything)
    assert all("s3.t1" in line for line in trial)
    assert any("EffectIntended key=s3.t1/0/sample" in line for line in trial)
    step = lines_of(capsys, run_dir, "--step", "3")
    assert set(trial) < set(step)
    graded = lines_of(capsys, run_dir, "--step", "3", "--kind", "graded")
    assert len(graded) == 2
    actor = lines_of(capsys, run_dir, "--actor", "actor")
    assert all(" actor " in line for line in actor)
    assert sum("ActorUpdated" in line for line in actor) == 2


def test_log_cat_json_has_every_field_of_every_event(recorded, capsys):
    found = [json.loads(line) for line in lines_of(capsys, str(recorded), "--json")]
    assert all({"at", "journal", "sequence", "epoch", "kind", "v"} <= entry.keys() for entry in found)
    update = next(entry for entry in found if entry["kind"] == "ActorUpdated")
    assert {f.name for f in msgspec.structs.fields(ActorUpdated)} <= update.keys()
    assert update["state"]["inline"] == "YWN0b3Igc3RhdGU="


def test_reading_only_the_first_lines_of_a_log_is_no_error(recorded):
    call = f"{sys.executable} -c 'from t1actors.cli.main import main; raise SystemExit(main())' log cat {recorded}"
    done = subprocess.run(["bash", "-c", f"{call} | head -1"], capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_log_check_is_clean_for_a_sound_run(recorded, capsys):
    assert main(["log", "check", str(recorded)]) == 0
    assert "clean: 8 journals" in capsys.readouterr().out


def test_log_check_names_the_place_of_a_changed_byte(recorded, capsys):
    segment = recorded / "log" / "sampler" / "000000000000.seg"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    assert main(["log", "check", str(recorded)]) == 1
    assert "journal sampler, segment 0, offset" in capsys.readouterr().out


def test_log_check_finds_a_broken_invariant_in_a_whole_journal(tmp_path, capsys):
    recorder = Recorder(FileLog(tmp_path / "log", "process"))
    recorder.change = lambda e: msgspec.structs.replace(e, staleness=3) if isinstance(e, ActorUpdated) else e
    whole_run(recorder)
    recorder.close()
    assert main(["log", "check", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "staleness 3, must be 0" in said
    assert "2 errors" in said


def test_report_and_runs_say_what_a_run_came_to(recorded, capsys):
    assert main(["runs", str(recorded.parent)]) == 0
    assert "no report; `t1 report" in capsys.readouterr().out
    assert main(["report", str(recorded)]) == 0
    assert "finished after 2 training steps" in capsys.readouterr().out
    assert main(["runs", str(recorded.parent)]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("made")
    assert "0.100" not in row  # two steps are too few to compare
    assert row.endswith("finished")


# --- t1 run -----------------------------------------------------------------------------------------------------------


def test_a_run_is_shown_ends_with_its_report_and_says_where_everything_is(toy_run, monkeypatch, capsys):
    monkeypatch.setattr(reporting, "LONG_EVENTS", 1)
    assert main(["run", "--preset", "smoke", "--dir", str(toy_run), "--display", "plain"]) == 0
    told = capsys.readouterr()
    assert re.fullmatch(r"writing the report: reading \d+ events\n", told.err)
    said = told.out
    assert "run toy started" in said
    assert "run stopped: finished" in said
    assert f"report   {toy_run / 'report.md'}" in said
    assert f"log      {toy_run / 'log'}" in said
    assert json.loads((toy_run / "report.json").read_text())["finished"]
    assert (toy_run.parent / "latest").resolve() == toy_run.resolve()
    assert main(["log", "check", str(toy_run)]) == 0


def test_a_run_directory_that_is_in_use_is_refused(toy_run, capsys):
    assert main(["run", "--preset", "smoke", "--dir", str(toy_run), "--display", "quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["run", "--preset", "smoke", "--dir", str(toy_run)]) == 1
    assert "holds a run already" in capsys.readouterr().err


def test_a_failed_run_is_status_1_and_says_why(toy_run, capsys):
    arguments = ["run", "--preset", "smoke", "--dir", str(toy_run), "--display", "json", "--set", "run.seed=13"]
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert "the run failed: seed 13" in said.err
    assert all(json.loads(line)["kind"] for line in said.out.splitlines())


def test_a_host_that_forbids_sandboxes_is_refused_with_reason_and_fix(toy_run, monkeypatch, capsys):
    async def forbidden(directory=None, *, settings=None):
        return [Check("namespaces", "bad", "unshare: Operation not permitted", "Run as root")]

    monkeypatch.setattr(run, "sandbox_checks", forbidden)
    assert main(["run", "--dir", str(toy_run)]) == 1
    said = capsys.readouterr().err
    assert "namespaces: unshare: Operation not permitted. Run as root; `t1 doctor`" in said
    assert not toy_run.exists()


def test_a_full_disk_is_refused_before_anything_is_written(toy_run, monkeypatch, capsys):
    monkeypatch.setattr(checks_place, "RUN_BYTES", 10**18)
    assert main(["run", "--dir", str(toy_run)]) == 1
    assert "a run needs" in capsys.readouterr().err
    assert not toy_run.exists()


def test_an_unusable_model_is_named(tmp_path, capsys):
    assert main(["run", "--set", f"model.policy={tmp_path}", "--dir", str(tmp_path / "r")]) == 1
    assert "no config.json in that folder" in capsys.readouterr().err
