"""The report is rebuilt from the log alone, and from nothing else."""

import json
import re
import shutil

import pytest

from t1actors.log.filelog import FileLog
from t1actors.observe.follow import NoRun, read_run
from t1actors.observe.report import NoSuchStep, write_report
from tests.observe.recorded import Recorder, critic, open_step, run_trial, seal, start, whole_run


def run_in(directory, make=whole_run):
    recorder = Recorder(FileLog(directory / "log", "process"))
    make(recorder)
    recorder.close()
    return directory


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A whole run with its report."""
    directory = run_in(tmp_path_factory.mktemp("run"))
    heard = []
    write_report(directory, progress=lambda done, total: heard.append((done, total)))
    assert heard == [(done, 9) for done in range(10)]
    return directory


def test_report_json_markdown_and_pictures_are_made_from_the_log(reported):
    found = json.loads((reported / "report.json").read_text())
    assert found["heldout_after"] == pytest.approx(0.875)
    assert found["staleness_by_step"] == [0, 1]
    text = (reported / "report.md").read_text()
    assert "The run finished after 2 training steps" in text
    for name in ("reward", "gap", "critic", "policy", "episodes", "boundaries", "seconds", "pipeline"):
        assert f"(plots/{name}.png)" in text
        assert (reported / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_log_gives_the_same_report_to_the_byte(reported, tmp_path):
    shutil.copytree(reported / "log", tmp_path / "log")
    write_report(tmp_path)
    made = [p.relative_to(reported) for p in reported.rglob("*") if p.is_file() and reported / "log" not in p.parents]
    assert len(made) == 2 + 8
    for path in made:
        assert (reported / path).read_bytes() == (tmp_path / path).read_bytes(), path


def test_every_picture_says_how_to_read_it_and_every_sign_what_to_type(tmp_path):
    def make(recorder):
        start(recorder)
        open_step(recorder, 0, "train")
        run_trial(recorder, "s0.t0", passed=1, version=0)
        seal(recorder, 0, "train", [1])
        critic(recorder, 0, variance=-0.5)

    write_report(run_in(tmp_path, make))
    text = (tmp_path / "report.md").read_text()
    assert "- **critic**: The critic's explained variance was negative in 1 of 1 updates (step 0)" in text
    assert "Next: `t1 log cat . --step 0 --kind ValuesEstimated" in text
    captions = re.findall(r"^!\[.*\]\(.*\)\n\n(.+)$", text, flags=re.MULTILINE)
    assert len(captions) == text.count("![") > 2


def test_the_step_on_the_wall_clock_can_be_chosen_and_must_be_there(tmp_path):
    def make(recorder):
        start(recorder)
        for step in range(2):
            open_step(recorder, step, "evaluate")
            run_trial(recorder, f"s{step}.t0", passed=1, version=0)

    write_report(run_in(tmp_path, make))
    assert "## Step 1 (evaluate) on the wall clock" in (tmp_path / "report.md").read_text()
    write_report(tmp_path, step=0)
    assert "## Step 0 (evaluate) on the wall clock" in (tmp_path / "report.md").read_text()
    with pytest.raises(NoSuchStep, match="no step 7: it has steps 0 to 1"):
        write_report(tmp_path, step=7)


def test_a_run_that_has_hardly_begun_has_a_report_too(tmp_path):
    write_report(run_in(tmp_path, lambda r: (start(r), open_step(r, 0, "evaluate"))))
    text = (tmp_path / "report.md").read_text()
    assert "The run is not over" in text
    assert "![" not in text


def test_a_directory_without_a_run_is_named(tmp_path):
    with pytest.raises(NoRun, match=r"no run here.*t1 runs"):
        read_run(tmp_path)
