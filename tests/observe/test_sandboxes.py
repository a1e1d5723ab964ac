"""What the pool says of its sandboxes, on the screen, in the lines and in the report."""

from t1actors.events import SandboxesReaped, SandboxRetried, TaskQuarantined
from t1actors.log.memory import MemoryLog
from t1actors.observe.figures import figures
from t1actors.observe.report import markdown
from t1actors.observe.screen import screen
from tests.observe.recorded import Recorder, open_step, run_trial, start
from tests.observe.test_displays import lines_of
from tests.observe.test_fold_and_figures import view_of


def recorded():
    log = MemoryLog()
    recorder = Recorder(log)
    start(recorder)
    recorder.emit("pool", SandboxesReaped(found={"control group": 2, "directory": 1}))
    open_step(recorder, 0, "train")
    recorder.emit("pool", SandboxRetried(trial="s0.t0", attempt=1, cause="TimeoutError", detail="slow", pause_s=0.2))
    recorder.emit("pool", TaskQuarantined(task="l1-7", tries=3, cause="task", detail="no base\nof that name"))
    run_trial(recorder, "s0.t0", passed=1, version=0)
    return log, recorder


def test_sandboxes_are_counted_from_the_pools_words():
    log, _ = recorded()
    found = view_of(log).sandboxes
    assert (found.created, found.reclaimed, found.live) == (1, 1, set())
    assert found.retries == {"TimeoutError": 1}
    assert found.leaked == {"control group": 2, "directory": 1}
    assert found.quarantined == {"l1-7": "task: no base\nof that name"}


def test_the_screen_shows_them_and_names_the_task_in_quarantine():
    log, recorder = recorded()
    text = "\n".join(line.text for line in screen(view_of(log), recorder.now_ns, 100))
    assert "0 live" in text
    assert "1 retries" in text
    assert "3 leaked" in text
    assert "l1-7" in next(line for line in text.splitlines() if line.startswith("quarantine"))


def test_a_task_in_quarantine_has_a_line_and_a_retry_has_one_for_programs():
    log, _ = recorded()
    assert sum("task l1-7 is drawn no more" in line for line in lines_of(log)) == 1
    assert not any("tried again" in line for line in lines_of(log))
    assert sum('"kind": "sandbox_retried"' in line for line in lines_of(log, "json")) == 1


def test_the_report_names_them(tmp_path):
    log, _ = recorded()
    text = markdown(figures(view_of(log)), [], tmp_path)
    assert "| sandboxes | 1 made, 1 reclaimed, 1 made after another try, 3 left by dead ones and removed |" in text
    assert "**quarantined tasks**: Tasks for which no sandbox could be made, so they were drawn no more: l1-7" in text
