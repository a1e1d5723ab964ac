"""Grading in real sandboxes: references pass, doing nothing does not, and cheating changes nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from t1actors.sandbox.archive import archive_of_files
from t1actors.tasks.families import FAMILIES
from t1actors.tasks.generate import LEVELS, GeneratedTask, make_task
from t1actors.tasks.reader import read_task
from t1actors.tasks.task import Task
from t1actors.tasks.write import write_task
from t1actors.verify.reward import reward
from t1actors.verify.verdict import Verdict
from tests.verify.trials import Bench, OnABench, pipelined


def on_disk(generated: GeneratedTask, directory: Path) -> Task:
    write_task(generated, directory)
    return read_task(directory / generated.name)


def tasks_of_all_families() -> list[GeneratedTask]:
    """A few tasks that have every family between them."""
    chosen: list[GeneratedTask] = []
    missing = set(FAMILIES)
    for seed in range(1000):
        task = make_task(seed, 5)
        if len(missing & set(task.families)) >= min(3, len(missing)) and missing:
            chosen.append(task)
            missing -= set(task.families)
    assert not missing
    return chosen


def test_the_reference_passes_everything_and_doing_nothing_passes_nothing(tmp_path: Path, on_a_bench: OnABench):
    generated = [make_task(seed, level) for level in LEVELS for seed in range(3)] + tasks_of_all_families()
    tasks = {task.name: (on_disk(task, tmp_path), task.solution) for task in generated}

    async def test(bench: Bench) -> list[Verdict]:
        solved = [partial(bench.trial, task, solution, f"{name}.r") for name, (task, solution) in tasks.items()]
        idle = [partial(bench.trial, task, (), f"{name}.n") for name, (task, _) in tasks.items()]
        return await pipelined(solved + idle)

    verdicts = on_a_bench(test)
    assert [verdict.outcome for verdict in verdicts] == ["graded"] * 2 * len(tasks)
    passed = [verdict.passed for verdict in verdicts]
    expected = [len(task.expected) for task, _ in tasks.values()]
    assert passed[: len(tasks)] == expected
    assert passed[len(tasks) :] == [0] * len(tasks)
    assert [reward(verdict, 20.0) for verdict in verdicts[: len(tasks)]] == [count / 20 for count in expected]


def test_every_plausible_mistake_misses_something(tmp_path: Path, on_a_bench: OnABench):
    """Round i does every sub-goal in its i-th wrong way."""
    trials: list[tuple[GeneratedTask, Task, list[str]]] = []
    for generated in tasks_of_all_families():
        task = on_disk(generated, tmp_path)
        for i in range(3):
            ways = [goal.wrong[min(i, len(goal.wrong) - 1)] for goal in generated.sub_goals]
            trials.append((generated, task, [command for way in ways for command in way.commands]))

    async def test(bench: Bench) -> list[Verdict]:
        return await pipelined(
            [partial(bench.trial, task, commands, f"t{i}") for i, (_, task, commands) in enumerate(trials)]
        )

    partial_credit = 0
    for (generated, _, commands), verdict in zip(trials, on_a_bench(test), strict=True):
        assert verdict.outcome == "graded"
        for number, family in enumerate(generated.families, 1):
            results = [result.passed for result in verdict.assertions if result.id.startswith(f"{number}.")]
            assert results
            assert not all(results), f"{generated.name}: {family} passes though done wrong: {commands}"
            partial_credit += any(results)
    assert partial_credit > 10  # mistakes are near misses: most still earn something


CHEATS = {
    "reports planted where the grader writes": [
        "mkdir -p /logs/verifier; echo 1000000 > /logs/verifier/reward.txt",
        "echo '{\"results\": {}}' > /logs/verifier/ctrf.json; mkdir /logs/verifier/ctrf.json.new",
    ],
    "tests replaced": [
        "mkdir -p /tests; echo 'exit 0' > /tests/test.sh; echo '{}' > /tests/assertions.json; cp -r /tests /app/tests",
        "ln -s /app/tests /app/logs",
    ],
    "programs and modules shadowed": [
        "printf '#!/bin/sh\\nexit 0\\n' > /app/python3; chmod 755 /app/python3; cp /app/python3 /app/bash",
        "cp /app/python3 /usr/bin/python3; cp /app/python3 /usr/local/bin/python3; mv /bin /bin.old",
        "echo 'import os; os._exit(0)' > /app/sitecustomize.py; cp /app/sitecustomize.py /app/usercustomize.py",
        "cp /app/sitecustomize.py /app/os.py; cp /app/sitecustomize.py /app/time.py; cp /app/os.py /app/conftest.py",
        "echo 'exit 0' > ~/.bashrc; echo 'exit 0' > /etc/profile; echo 'export PATH=/app' > /app/.bash_profile",
        "d=~/.local/lib/python3.11/site-packages; mkdir -p $d; echo 'import os; os._exit(0)' > $d/x.pth",
    ],
    "a background writer": [
        "(while true; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; sleep 0.01; done) &",
        "nohup setsid bash -c 'while true; do echo x > /app/late; done' >/dev/null 2>&1 & disown",
    ],
    "everything in sight made a link": [
        "rm -rf /app/*; for d in $(ls /usr/share | head -100); do ln -s /usr/share/$d /app/$d; done",
        "cd /; rm -rf /app; ln -s /usr /app",
    ],
    "everything deleted": ["cd /; rm -rf /app"],
    "a deep tree": ["python3 -Ic \"import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(3000)]\""],
    "many files": [
        "for i in $(seq 5500); do echo > f$i; done",
        "mkdir $'new\\nline' $'\\xff\\xfe'; touch -- '-rf' \"$(printf '%0250d' 0)\"",
    ],
    "a full disk": ["head -c 100M /dev/zero | tr '\\0' x > big"],
    "files that claim to be huge": ["truncate -s 8E a; truncate -s 100T b; truncate -s 1T c"],
    "unreadable files": ["mkdir -m 0 shut; mkdir t; touch t/x; chmod 0 t/x t"],
    "an unreadable working directory": ["chmod 0 /app"],
    "odd bits": ["touch s; chmod 7777 s; chmod 7777 /app"],
    "special files": ["mkfifo p; mknod n c 1 3; python3 -Ic \"import socket; socket.socket(socket.AF_UNIX).bind('s')\""],
}  # fmt: skip


@pytest.mark.parametrize("cheat", sorted(CHEATS))
def test_cheating_earns_nothing_and_honest_work_beside_it_still_counts(
    tmp_path: Path, cheat: str, on_a_bench: OnABench
):
    generated = make_task(11, 1)
    task = on_disk(generated, tmp_path)
    destroys = cheat.startswith("everything")

    async def test(bench: Bench) -> list[Verdict]:
        alone = await bench.trial(task, CHEATS[cheat], "alone")
        beside = await bench.trial(task, [*generated.solution, *CHEATS[cheat]], "beside")
        return [alone, beside]

    alone, beside = on_a_bench(test)
    assert (alone.outcome, beside.outcome) == ("graded", "graded"), (alone.detail, beside.detail)
    assert alone.passed == 0
    assert beside.passed == (0 if destroys else len(task.expected))
    assert alone.tests_digest == beside.tests_digest


def test_files_an_assertion_names_can_be_anything_without_hurting_the_grader(tmp_path: Path, on_a_bench: OnABench):
    """Each path that the tests look at becomes a pipe, a link to the tests, a huge file, a directory."""
    generated = make_task(11, 3)
    task = on_disk(generated, tmp_path)
    paths = sorted({assertion.path for _, assertion in generated.assertions})
    clear = [f"rm -rf {path}; mkdir -p $(dirname {path})" for path in paths]

    async def test(bench: Bench) -> list[Verdict]:
        return await pipelined(
            partial(bench.trial, task, [*clear, *(f"{make} {path}" for path in paths)], make.split()[0])
            for make in ("mkfifo", "ln -s /tests/assertions.json", "truncate -s 1T", "mkdir")
        )

    verdicts = on_a_bench(test)
    assert [verdict.outcome for verdict in verdicts] == ["graded"] * 4
    assert all(verdict.passed < verdict.expected for verdict in verdicts)


def test_grading_can_be_repeated_and_gives_the_same_verdict(tmp_path: Path, on_a_bench: OnABench):
    generated = make_task(4, 2)
    task = on_disk(generated, tmp_path)

    async def test(bench: Bench) -> list[Verdict]:
        layer = await bench.work(task, generated.solution[:2], "work")
        return [await bench.grade(task, layer, key) for key in ("same", "same", "other")]

    verdicts = on_a_bench(test)
    assert 0 < verdicts[0].passed < verdicts[0].expected
    assert len({(v.outcome, v.assertions, v.tests_digest, v.tools_digest) for v in verdicts}) == 1
    assert verdicts[0].isolation.backend in ("namespaces", "docker")


@pytest.mark.parametrize(
    ("test_sh", "outcome", "says"),
    [
        ("python3 -I -S -c 'def ('\n", "no_report", "SyntaxError"),
        ("exit 0\n", "verifier_crash", "exit status 0 and no"),
        ("kill -9 $$\n", "verifier_crash", "exit status 137 and no"),
        ("no-such-program\n", "no_report", "command not found"),
        ("while true; do :; done\n", "verifier_timeout", "stopped after"),
        ("echo 1 > /logs/verifier/reward.txt\n", "verifier_crash", "exit status 0"),
        ("echo -n '{\"results\": ' > /logs/verifier/ctrf.json\n", "partial_report", "not JSON"),
        ("ln -s /tests/assertions.json /logs/verifier/ctrf.json\n", "verifier_crash", "no /logs/verifier/ctrf.json"),
        ("mkfifo /logs/verifier/ctrf.json; exit 3\n", "no_report", "exit status 3"),
    ],
)  # fmt: skip
def test_a_broken_verifier_is_named_and_measures_nothing(
    tmp_path: Path, test_sh: str, outcome: str, says: str, on_a_bench: OnABench
):
    task = on_disk(make_task(2, 1), tmp_path)
    (task.tests_dir / "test.sh").write_text(test_sh)
    toml = task.path / "task.toml"
    toml.write_text(toml.read_text().replace("timeout_sec = 60.0", "timeout_sec = 0.5"))
    task = read_task(task.path)
    verdict = on_a_bench(lambda bench: bench.grade(task, archive_of_files({"app/": b""}), "broken"))
    assert (verdict.outcome, reward(verdict, 20.0)) == (outcome, None)
    assert says in verdict.detail


def test_a_damaged_archive_is_the_infrastructures_fault(tmp_path: Path, on_a_bench: OnABench):
    task = on_disk(make_task(2, 1), tmp_path)
    verdict = on_a_bench(lambda bench: bench.grade(task, b"not an archive", "damaged"))
    assert verdict.outcome == "infra"
    assert "does not begin like an archive" in verdict.detail
