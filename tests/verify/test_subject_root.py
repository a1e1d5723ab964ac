"""Which of what the agent left its programs find when tests start them: the graded paths, and nothing else."""

import pytest

from tests.verify.samples import expecting, sample_task

CASES = """
import subprocess


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout


def test_the_program_works():
    assert said("/app/program") == "installed\\n"


def test_what_lies_elsewhere_is_as_it_was():
    assert said("sh", "-c", "ls -d /opt/other /etc/other /srv/mine 2>/dev/null") == ""
"""
IDS = ("test_work.py::test_the_program_works", "test_work.py::test_what_lies_elsewhere_is_as_it_was")
WORK = [
    "mkdir -p /opt/tool/lib /opt/other /etc/other; echo installed > /opt/tool/lib/word; touch /srv/mine /opt/other/mine",
    "printf '#!/bin/sh\\ncat /opt/tool/lib/word\\n' > program; chmod 755 program",
]


@pytest.mark.parametrize(
    ("toml", "passed"),
    [("", [False, True]), ("graded_paths = ['/app', '/opt/tool']\n", [True, True])],
    ids=["only the working directory", "the tool's too"],
)
def test_a_program_finds_what_it_needs_where_its_path_is_graded(tmp_path, on_a_bench, toml, passed):
    task = sample_task(tmp_path, cases=CASES, toml=f"{toml}{expecting(*IDS)}")
    verdict = on_a_bench(lambda bench: bench.trial(task, WORK, "t"))
    assert verdict.outcome == "graded", verdict.detail
    assert [result.passed for result in verdict.assertions] == passed


def test_a_program_finds_all_that_was_installed_in_the_agents_own_sandbox(tmp_path, on_a_bench):
    task = sample_task(tmp_path, cases=CASES, toml=f"grading = 'same-sandbox'\n{expecting(*IDS)}")
    verdict = on_a_bench(lambda bench: bench.grade_live(task, WORK, "t"))
    assert [result.passed for result in verdict.assertions] == [True, False]
