"""Calls that cannot work: one message says what, where and what to do, and the exit status tells."""

import shutil
from pathlib import Path

import msgpack
import pytest

from t1actors.cli import checks_place
from t1actors.cli.main import main
from t1actors.events import Graded, UnknownEvent, encode
from t1actors.log.filelog import FileLog
from tests.observe.recorded import Recorder, half_a_run, whole_run

NO_RUN = "no run here"


def write(directory, make=whole_run, change=lambda event: event):
    recorder = Recorder(FileLog(directory / "log", "process"))
    recorder.change = change
    make(recorder)
    recorder.close()


def without_its_outcome(event):
    """A grade as another version wrote it."""
    if not isinstance(event, Graded):
        return event
    fields = msgpack.unpackb(encode(event))
    del fields["outcome"]
    return UnknownEvent("Graded", msgpack.packb(fields))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Runs, and things that are none."""
    here = tmp_path_factory.mktemp("places")
    write(here / "made")
    write(here / "half", half_a_run)
    write(here / "older", change=without_its_outcome)
    for name, text in (("config-broken", b"seed = = 1"), ("config-binary", b"\xff\xfe")):
        shutil.copytree(here / "half", here / name)
        (here / name / "config.toml").write_bytes(text)
    shutil.copytree(here / "half", here / "config-folder")
    (here / "config-folder" / "config.toml").mkdir()
    shutil.copytree(here / "made", here / "headless")
    shutil.rmtree(here / "headless" / "log" / "supervisor")
    shutil.copytree(here / "made", here / "plots-file")
    (here / "plots-file" / "plots").write_text("")
    (here / "empty").mkdir()
    (here / "nothing-in-log" / "log").mkdir(parents=True)
    (here / "file").write_text("")
    (here / "binary.toml").write_bytes(b"\xff")
    (here / "broken.toml").write_text("a = = 1")
    return here


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        ("report nowhere", 1, NO_RUN),
        ("report file", 1, NO_RUN),
        ("report nothing-in-log", 1, "no journal of the supervisor"),
        ("report headless", 1, "no journal of the supervisor"),
        ("report older", 1, "an event Graded of the log cannot be read: Object missing required field `outcome`"),
        ("report older", 1, "another version of t1actors wrote it: use that one"),
        ("report made --step 99", 2, "no step 99: it has steps 0 to 6"),
        ("report made --step 1.5", 2, "--step 1.5: must be a whole number"),
        ("report plots-file", 1, "plots-file/plots: File exists; name another place, or move it away"),
        ("runs nowhere", 1, "nowhere: no such directory; without an argument, `t1 runs` looks in runs"),
        ("runs file", 1, "file is no directory; name one that holds a folder for each run"),
        ("replay nowhere --step 1", 1, NO_RUN),
        ("replay nothing-in-log --all", 1, "no journal of the supervisor"),
        ("replay made --step 1 --all", 2, "--step N, or --all"),
        ("replay made --step 2.0", 2, "--step 2.0: must be a whole number"),
        ("log cat nothing-in-log", 1, "no journal of the supervisor"),
        ("log cat made --trial s99.t0", 1, "is of --trial s99.t0; a trial is named as in s3.t17"),
        ("log cat made --step 0 --actor actor", 1, "events is of --step 0, --actor actor"),
        ("log cat made --actor nobody", 2, "has no such journal; it has actor, assembler, critic"),
        ("log cat made --actor actor --kind Nope", 1, "is of --actor actor, --kind Nope; without --kind there are: Actor"),
        ("log check headless", 1, "no journal of the supervisor"),
        ("config show --config nowhere", 2, "no configuration file"),
        ("config show --config empty", 1, "Is a directory; a file should be there: name another place"),
        ("config show --config binary.toml", 2, "binary.toml: not text in UTF-8"),
        ("config show --config broken.toml", 2, "broken.toml: not TOML: Invalid value (at line 1, column 5)"),
        ("task make file", 1, "file: File exists; name another place, or move it away"),
        ("task make file/below", 1, "Not a directory; something on the way there is a file"),
        ("task make t --seed -1", 2, "--seed -1: must be at least 0"),
        ("task make t --count 2.5", 2, "--count 2.5: must be a whole number"),
        ("task make t --levels 3-1", 2, "3-1 goes down; write the lower level first"),
        ("warmstart make out --corpus nowhere", 1, "no demonstrations at nowhere"),
        ("warmstart make file", 1, "file: File exists"),
        ("warmstart demos empty", 1, "empty is a directory; name the file to write in it, such as empty/demos.jsonl.gz"),
        ("warmstart demos file/below", 1, "file: File exists"),
        ("warmstart demos d.gz --count 0", 2, "--count 0: must be at least 1"),
        ("warmstart demos d.gz --parallel 0", 2, "--parallel 0: must be at least 1"),
        ("run --resume nothing-in-log", 1, "no journal of the supervisor"),
        ("run --resume made", 1, "is finished already"),
        ("run --resume older", 1, "an event Graded of the log cannot be read"),
        ("run --resume config-broken", 2, "config.toml: not TOML"),
        ("run --resume config-binary", 2, "config.toml: not text in UTF-8"),
        ("run --resume config-folder", 1, "config.toml: Is a directory"),
        ("run --preset smoke --dir made", 1, "holds a run already"),
        ("run --preset smoke --tasks file", 1, "not a directory; name one that holds a folder for each task"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_work_says_what_where_and_what_to_do(call, status, words, places, monkeypatch, capsys):
    monkeypatch.chdir(places)
    before = sorted(places.iterdir())
    assert main(call.split()) == status
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.splitlines()[-1].startswith("t1: ")
    assert "Traceback" not in said.err
    assert said.out == ""
    assert sorted(places.iterdir()) == before


def test_the_events_of_another_version_are_shown_all_the_same(places, capsys):
    assert main(["log", "cat", str(places / "older"), "--kind", "Graded"]) == 0
    assert " Graded trial=" in capsys.readouterr().out


def test_a_list_of_runs_goes_on_past_a_report_that_cannot_be_read(places, capsys):
    (places / "older" / "report.json").mkdir(exist_ok=True)
    assert main(["runs", str(places)]) == 0
    assert "older" in capsys.readouterr().out


def test_a_list_of_runs_goes_on_past_one_that_only_its_owner_may_read(places, monkeypatch, capsys):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("is_dir", "read_bytes"):
        method = getattr(Path, name)
        monkeypatch.setattr(Path, name, lambda p, method=method: refused(p) if "half" in p.parts else method(p))
    assert main(["runs", str(places)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["half"].endswith("Permission denied")
    assert "made" in rows


def test_the_doctor_refuses_a_file_for_a_directory(places):
    for place in ("file", "file/below"):
        checks = checks_place.of_the_place(places / Path(place))
        assert checks[0].verdict == "bad"
        assert f"{place} is no directory, or lies below what is none" in checks[0].found
