"""The examples run, and say what their texts promise: here in this process, in the second tier as the programs they are."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from t1actors.events import ActorUpdated
from t1actors.tasks.reader import read_task
from tests.loop.runs import TinyRun

ROOT = Path(__file__).parents[2]


def run_here(monkeypatch, capsys, name: str, *arguments: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def run_as_program(name: str, *arguments: str, said: str = "") -> list[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def last_step(run: TinyRun) -> str:
    return str(run.of(ActorUpdated)[-1].step)


def check_debugged(lines: list[str], step: str) -> None:
    assert lines[0] == f"step {step} (train): bit-exact"
    at = lines.index("the 10 tokens with the largest |d|: p_b and p are the probabilities then and now")
    worst = [line.split() for line in lines[at + 2 : at + 12]]
    gaps = [abs(float(row[3])) for row in worst]
    assert gaps == sorted(gaps, reverse=True)
    assert all(row[0].startswith(f"s{step}.t") and "[" in " ".join(row) for row in worst)
    at = lines.index("the 10 tokens of its first update with the largest |V - R|")
    errors = [abs(float(line.split()[3]) - float(line.split()[4])) for line in lines[at + 2 : at + 12]]
    assert errors == sorted(errors, reverse=True)
    assert any("model.embed_tokens.weight" in line for line in lines)
    assert any(line.startswith(f"the step without s{step}.t") for line in lines)


def test_the_sandbox_example_leaves_nothing(monkeypatch, capsys, host_makes_sandboxes, tmp_path):
    lines = run_here(monkeypatch, capsys, "sandbox_pool_asyncio.py", str(tmp_path / "sandboxes"))
    assert "agent11: 78, sealed in 147 bytes" in lines
    assert any(line.startswith("endless command: exit 124") and line.endswith("limits hit: time") for line in lines)
    assert any(line.startswith("out of memory") for line in lines)
    assert lines[-3:] == [
        "timed out in the middle of a command; sandboxes alive: []",
        "made 14, reclaimed 14, leaked 0, tried again 0",
        "left: []",
    ]


def test_two_programs_that_share_a_machine_keep_its_rate(monkeypatch, capsys, host_makes_sandboxes, tmp_path):
    lines = run_here(monkeypatch, capsys, "sandbox_pool_trio.py", str(tmp_path / "shared"))
    assert lines[-1] == "12 sandboxes, never faster than the rate: True"
    counted = "PoolMetrics(waiting=0, live=0, created=6, reclaimed=6, leaked=0, retries=0, failed=0)"
    assert sorted(lines[:-1]) == [f"one: {counted}", f"two: {counted}"]
    assert sorted(path.name for path in (tmp_path / "shared" / "node").iterdir()) == ["bucket", "slots"]


def test_an_agent_that_is_not_ours_works_on_a_task_and_is_graded(monkeypatch, capsys, host_makes_sandboxes):
    lines = run_here(monkeypatch, capsys, "grade_foreign_agent.py")
    assert lines == [
        read_task(ROOT / "examples" / "tasks" / "text-harbour").instruction.splitlines()[0],
        "eager saw: 21 nadan.txt",
        "eager: graded, 1 of 11, reward 0.1",
        "idle: graded, 0 of 11, reward 0.0",
    ]


def test_every_example_is_run_by_a_test():
    text = Path(__file__).read_text()
    examples = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert [name for name in examples if f'"{name}"' not in text] == []


def test_the_foreign_agent_trains(monkeypatch, capsys):
    head, *steps = run_here(monkeypatch, capsys, "train_foreign_agent.py", "2")
    assert head.split()[:3] == ["step", "reward", "gap"]
    assert [line.split()[0] for line in steps] == ["0", "1"]
    assert all(float(line.split()[2]) < 1e-5 for line in steps)  # trainer and engine agree on what was sampled


def test_an_agent_behind_the_endpoint_trains_without_an_engine_gap(monkeypatch, capsys):
    steps = run_here(monkeypatch, capsys, "train_your_agent.py", "3", "8")
    assert [line.split(":")[0] for line in steps] == ["step 0", "step 1", "step 2"]
    assert all(line.endswith("engine gap 0") for line in steps)


def test_a_step_of_a_run_is_debugged(monkeypatch, capsys, tiny_run: TinyRun):
    check_debugged(
        run_here(monkeypatch, capsys, "debug_step.py", str(tiny_run.run_dir), last_step(tiny_run)), last_step(tiny_run)
    )


def test_a_step_that_the_run_does_not_have_is_said_in_one_line(monkeypatch, capsys, tiny_run: TinyRun):
    with pytest.raises(SystemExit, match=r"debug_step: run .* has no step 99"):
        run_here(monkeypatch, capsys, "debug_step.py", str(tiny_run.run_dir), "99")


@pytest.mark.slow
def test_the_foreign_agent_learns_its_game():
    rewards = [float(line.split()[1]) for line in run_as_program("train_foreign_agent.py")[1:]]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3


@pytest.mark.slow
def test_an_agent_behind_the_endpoint_learns_what_it_is_rewarded_for():
    rewards = [float(line.split()[3].rstrip(",")) for line in run_as_program("train_your_agent.py")]
    assert rewards[-1] > rewards[0] + 0.3


@pytest.mark.slow
def test_the_debugger_stops_inside_the_actors_loss(tiny_run: TinyRun):
    step = last_step(tiny_run)
    said = "p view.update, view.step\nup\np type(trainer).__name__\nc\n"
    lines = run_as_program("debug_step.py", str(tiny_run.run_dir), step, "--update", "2", "--pdb", said=said)
    text = "\n".join(lines)
    assert f"(2, {step})" in text
    assert "'Trainer'" in text
    assert "next: --pdb to stop there" in text


@pytest.mark.slow
def test_the_sandbox_example_is_a_program(host_makes_sandboxes):
    assert run_as_program("sandbox_pool_asyncio.py")[-1] == "left: []"
