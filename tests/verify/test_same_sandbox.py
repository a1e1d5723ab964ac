"""In the agent's own sandbox: running services and installed things count; the verdict says what it can't promise."""

import msgspec
import pytest

from t1actors.tasks.reader import read_task
from t1actors.tasks.task import TaskError
from t1actors.verify.live import WARNING, Tested, judge_live
from tests.verify.samples import IDS, WORK, expecting, sample_task

SERVICE = """
import urllib.request

def test_the_service_answers():
    assert urllib.request.urlopen("http://localhost:8000/word", timeout=5).read() == b"hi\\n"

def test_the_tool_is_installed():
    import subprocess
    assert subprocess.run(["/opt/tool"], capture_output=True).stdout == b"installed\\n"
"""
START = [
    "mkdir site && cd site && echo hi > word",
    "(setsid python3 -m http.server 8000 >/dev/null 2>&1 &)",
    "for _ in $(seq 100); do (: > /dev/tcp/localhost/8000) 2>/dev/null && break; sleep 0.05; done",
    "printf '#!/bin/sh\\necho installed\\n' > /opt/tool; chmod 755 /opt/tool",
]


def test_a_running_service_and_what_was_installed_are_graded(tmp_path, on_a_bench):
    task = sample_task(tmp_path, cases=SERVICE, toml="grading = 'same-sandbox'")

    async def test(bench):
        return await bench.grade_live(task, START, "live"), await bench.grade_live(task, (), "idle")

    live, idle = on_a_bench(test)
    assert (live.outcome, live.mode, live.channel, live.passed) == ("graded", "same-sandbox", "plugin", 2), live.detail
    assert (idle.outcome, idle.passed, idle.expected) == ("graded", 0, 2)
    assert WARNING in live.warnings
    assert live.tests_digest
    assert live.tool_layer_digest
    assert any(line.startswith("uvx: pytest==8.4.1") for line in live.stand_ins)


MISCHIEF = {
    "functions and traps": [
        "cd() { exit 0; }; rm() { :; }; tar() { :; }; base64() { :; }; export() { :; }",
        "trap 'exit 0' DEBUG EXIT",
    ],
    "an environment": ["echo 'exit 0' > x; export PATH=/app PYTEST_ADDOPTS=--collect-only PYTHONPATH=/app BASH_ENV=/app/x"],
    "tests and reports that are there already": [
        "mkdir -p /tests /opt/t1/bin /logs/t1 /logs/verifier; echo 'exit 0' > /tests/test.sh; touch /opt/t1/bin/pytest",
        "echo 1 > /logs/verifier/reward.txt; echo '{}' > /logs/t1/cases.jsonl; echo 'x' > /tests/conftest.py",
    ],
    "links in their place": ["rm -rf /logs /tests; for p in tests logs opt/t1 tmp/t1; do ln -s /app /$p; done"],
}  # fmt: skip


@pytest.mark.parametrize("mischief", sorted(MISCHIEF))
def test_what_lies_in_the_way_is_cleared_away(tmp_path, on_a_bench, mischief):
    """Not a promise against a process that goes on: that the mode cannot make."""
    task = sample_task(tmp_path, toml=f"grading = 'same-sandbox'\n{expecting(*IDS)}")

    async def test(bench):
        idle = await bench.grade_live(task, MISCHIEF[mischief], "idle")
        return idle, await bench.grade_live(task, [*WORK, *MISCHIEF[mischief]], "beside")

    idle, beside = on_a_bench(test)
    assert (idle.outcome, idle.passed) == ("graded", 0), idle.detail
    assert (beside.outcome, beside.passed) == ("graded", 3), beside.detail


def test_asked_again_by_its_key_the_tests_do_not_run_again(tmp_path, on_a_bench):
    task = sample_task(tmp_path, toml="grading = 'same-sandbox'")

    async def test(bench):
        made = await bench.begin(task, WORK, "t")
        first = await bench.verifier_of_agents.test_live(task, "t", key="k", isolation=made.isolation)
        again = await bench.verifier_of_agents.test_live(task, "t", key="k", isolation=made.isolation)
        await bench.agents.kill("t")
        return first, again

    first, again = on_a_bench(test)
    assert first.evidence == again.evidence


def test_the_record_of_what_was_left_is_judged_again_to_the_same_verdict(tmp_path, on_a_bench):
    task = sample_task(tmp_path, toml="grading = 'same-sandbox'")

    async def test(bench):
        made = await bench.begin(task, WORK, "t")
        tested = await bench.verifier_of_agents.test_live(task, "t", key="k", isolation=made.isolation)
        await bench.agents.kill("t")
        return tested

    tested = on_a_bench(test)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(tested), type=Tested)
    assert judge_live(task, kept) == judge_live(task, tested)
    assert judge_live(task, kept).passed == 3
    assert judge_live(task, kept).isolation == tested.isolation
    assert tested.isolation.namespaces


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("grading = 'somewhere'", "grading = 'somewhere': expected fresh-root or same-sandbox"),
        ("subject = 'root'", "subject = 'root': expected user or grader"),
        ("graded_paths = ['/tests/x']", "graded_paths = '/tests/x'"),
        ("graded_paths = ['/usr/local']", "graded_paths = '/usr/local'"),
        ("graded_paths = ['/etc']", "graded_paths = '/etc'"),
        ("graded_paths = ['/etc/alternatives']", "graded_paths = '/etc/alternatives'"),
        ("graded_paths = ['app']", "graded_paths = 'app'"),
        ("graded_paths = ['/app', '/app/x']", "none lies in another"),
        ("graded_paths = ['/app', '/app']", "none lies in another"),
    ],
)
def test_rules_of_grading_that_make_no_sense_are_refused_by_name(tmp_path, toml, says):
    with pytest.raises(TaskError, match=says.replace("[", r"\[")):
        sample_task(tmp_path, toml=toml)


def test_rules_of_grading_are_read(tmp_path):
    toml = "grading = 'same-sandbox'\ngraded_paths = ['/app/', '/etc/nginx']\nsubject = 'grader'\ntests_readable = true"
    task = read_task(sample_task(tmp_path, toml=toml).path)
    assert task.graded_paths == ("/app", "/etc/nginx")
    assert (task.grading.mode, task.grading.subject, task.grading.tests_readable) == ("same-sandbox", "grader", True)
    assert task.unknown_keys == ()
    assert sample_task(tmp_path).graded_paths == ("/app",)
