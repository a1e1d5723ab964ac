"""The report is rebuilt from the log alone, and from nothing else."""

import json
import shutil

import pytest

from t1actors.log.filelog import FileLog
from t1actors.observe.follow import NoRun, read_run
from t1actors.observe.report import write_report
from tests.observe.recorded import Recorder, open_step, start, whole_run


def run_in(directory, make=whole_run):
    recorder = Recorder(FileLog(directory / "log", "process"))
    make(recorder)
    recorder.close()
    return directory


def test_report_json_markdown_and_pictures_are_made_from_the_log(tmp_path):
    write_report(run_in(tmp_path))
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["heldout_after"] == pytest.approx(0.875)
    assert found["staleness_by_step"] == [0, 1]
    text = (tmp_path / "report.md").read_text()
    assert "The run finished after 2 training steps" in text
    for name in ("reward", "gap", "critic", "policy", "episodes", "seconds"):
        assert f"(plots/{name}.png)" in text
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_log_gives_the_same_report_to_the_byte(tmp_path):
    write_report(run_in(tmp_path / "one"))
    shutil.copytree(tmp_path / "one" / "log", tmp_path / "two" / "log")
    write_report(tmp_path / "two")
    for name in ("report.json", "report.md", "plots/reward.png", "plots/gap.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_run_that_has_hardly_begun_has_a_report_too(tmp_path):
    write_report(run_in(tmp_path, lambda r: (start(r), open_step(r, 0, "evaluate"))))
    text = (tmp_path / "report.md").read_text()
    assert "The run is not over" in text
    assert "![" not in text


def test_a_directory_without_a_run_is_named(tmp_path):
    with pytest.raises(NoRun, match=r"no run here.*t1 runs"):
        read_run(tmp_path)
