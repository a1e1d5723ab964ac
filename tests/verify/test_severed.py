"""Links that an agent leaves lead nowhere in the grader's root, also where the tests are no pytest that could look."""

import pytest

from t1actors.verify.severed import leads_into_closed
from tests.verify.samples import sample_task

SCRIPT = """cmp -s /app/out.py /tests/test_work.py && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt
"""


@pytest.mark.parametrize(
    ("directory", "target"),
    [
        ("/app", "/tests/answer"),
        ("/app", "//tests/./answer"),
        ("/app", "/tests"),
        ("/app", "../tests/answer"),
        ("/app/a/b", "../../../../tests"),
        ("/app", "/"),
        ("/app", "/opt"),
        ("/app", "/logs/verifier/reward.txt"),
        ("/app", "/proc/1/root/tests"),
        ("/app", "/dev/fd/255"),
        ("/app", "usr/../tests"),  # leads there where usr is a link to a directory of /
        ("/app", "/app/../tests"),
    ],
)
def test_a_link_into_the_graders_files_is_known_as_one(directory, target):
    assert leads_into_closed(directory, target)


@pytest.mark.parametrize(
    ("directory", "target"),
    [
        ("/app/venv/bin", "/usr/bin/python3"),
        ("/app/node_modules/.bin", "../tool/cli.js"),
        ("/app", "tests/data"),
        ("/app", "lib.so.1"),
        ("/app", "/dev/null"),
        ("/app", "/opt/tool"),
    ],
)
def test_a_link_of_honest_work_stays(directory, target):
    assert not leads_into_closed(directory, target)


@pytest.mark.parametrize(
    "work",
    [
        "ln -s /tests/test_work.py out.py",
        "ln -s / root; ln -s root/tests/test_work.py out.py",
        "ln -s /usr top; ln -s top/../tests/test_work.py out.py",
        "ln -s b a; ln -s c b; ln -s /tests c; ln -s a/test_work.py out.py",
        "mkdir d; ln -s ../../tests d/t; ln -s d/t/test_work.py out.py",
    ],
)
def test_a_script_reads_no_test_through_a_link_that_the_agent_left(tmp_path, on_a_bench, work):
    task = sample_task(tmp_path, script=SCRIPT, toml="")
    verdict = on_a_bench(lambda bench: bench.trial(task, [work], "t"))
    assert (verdict.outcome, verdict.passed) == ("graded", 0)
    assert any(
        "links that may lead to the grader's own files were left out: /app/" in text for text in verdict.warnings
    )
