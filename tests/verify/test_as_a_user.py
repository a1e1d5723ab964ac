"""Grading on sandboxes of an ordinary user: as strict where it has subordinate ids, and where it has none a fence does what
another user would.
"""

import pytest

from t1actors.verify.inside.landlock import OLDEST, SIGNALS, version
from tests.verify.samples import IDS, WORK, expecting, sample_task
from tests.verify.test_attacks import (
    ATTACKS,
    PROGRAMS,
    test_a_program_that_was_told_by_the_tests_what_to_answer_gets_no_credit,  # noqa: F401
)
from tests.verify.trials import on_a_bench, pipelined


@pytest.fixture
def tmp_path(user):
    """pytest's own is closed to others."""
    return user.given


@pytest.fixture(name="on_a_bench")
def _on_a_bench(user, host_makes_sandboxes):
    """``on_a_bench(test)`` runs ``test(bench)`` on real sandboxes of an ordinary user."""
    if user.way == "one uid" and version() < OLDEST:
        pytest.skip("this kernel has no Landlock: nothing keeps programs from a grader who is the same user")
    return lambda test: user.run(lambda: on_a_bench(test, tools=user.directory / "tools"))


def program_that(deed):
    """The work whose program does that when tests run it, and then answers wrongly."""
    program = f"cat > double <<'END'\n#!/bin/bash\n{{ {deed}\n}} 1>&2\necho wrong\nEND\nchmod 755 double"
    return [WORK[0], program]


def test_programs_under_test_can_do_nothing_to_their_grader(tmp_path, on_a_bench, user):
    task = sample_task(tmp_path, toml=expecting(*IDS))
    # All memory, where no control group keeps them apart, is the grader's too: that ends unmeasured. So do signals where
    # Landlock does not know them yet.
    signals = {"kills the grader", "stops the grader"} if version() < SIGNALS else set()
    deeds = sorted(PROGRAMS.keys() - {"takes all memory"} - signals)
    if user.way == "subuid":
        deeds = ["kills the grader", "speaks to the grader's shell", "writes reports"]

    async def test(bench):
        def trial(deed):
            return lambda: bench.trial(task, program_that(PROGRAMS[deed]), deed.replace(" ", "-"))

        return await pipelined([trial(deed) for deed in deeds], width=2)

    verdicts = on_a_bench(test)
    found = {
        deed: (v.outcome, v.channel, *(r.id for r in v.assertions if r.passed), v.detail)
        for deed, v in zip(deeds, verdicts, strict=True)
    }
    assert found == dict.fromkeys(deeds, ("graded", "plugin", IDS[0], ""))
    warned = {warning for verdict in verdicts for warning in verdict.warnings}
    assert any("one user id only" in warning for warning in warned) == (user.way == "one uid"), warned


def test_what_the_agent_prepares_changes_no_score(tmp_path, on_a_bench):
    task = sample_task(tmp_path, toml=expecting(*IDS))
    commands = ["\n".join(line for name in sorted(ATTACKS) if "petabyte" not in name for line in ATTACKS[name])]

    verdict = on_a_bench(lambda bench: bench.trial(task, [WORK[0], *commands], "t"))
    assert (verdict.outcome, verdict.channel, verdict.passed) == ("graded", "plugin", 1), verdict.detail


def test_where_tests_start_everything_as_the_grader_the_verdict_says_that_alone(tmp_path, on_a_bench):
    task = sample_task(tmp_path, toml="subject = 'grader'")
    verdict = on_a_bench(lambda bench: bench.trial(task, WORK, "t"))
    assert verdict.passed == 3
    assert verdict.warnings == ("programs that tests start run as the grader's user: task.toml says so",)


def test_programs_are_kept_apart_however_they_are_started_and_can_use_what_tests_make_for_them(tmp_path, on_a_bench):
    cases = """
import os, pty, subprocess, tempfile, multiprocessing

TRY = "touch /logs/t1/x || cat /tests/test_work.py || ls /root || (echo >/dev/.t1/in) || touch /app/x || exit 7"

def is_apart():
    try:
        open("/logs/t1/cases.jsonl", "a").close()
    except PermissionError:
        return True

def test_programs():
    assert subprocess.run(TRY, shell=True).returncode == 7
    assert subprocess.run(TRY, shell=True, preexec_fn=os.setsid).returncode == 7
    assert os.system(TRY) == 7 << 8
    assert os.popen(TRY).close() == 7 << 8
    assert os.spawnvp(os.P_WAIT, "sh", ["sh", "-c", TRY]) == 7

def test_forks():
    for fork in (os.fork, lambda: pty.fork()[0]):
        child = fork()
        if child == 0:
            os._exit(9 if is_apart() else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(is_apart)

def test_it_can_use_what_tests_make_for_it(tmp_path):
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w") as file:
        file.write("text"); file.flush()
        for place in (tmp_path, folder):
            subprocess.run(["cp", file.name, f"{place}/copy"], check=True, cwd=place)
            assert open(f"{place}/copy").read() == "text"
"""
    task = sample_task(tmp_path, cases=cases)
    verdict = on_a_bench(lambda bench: bench.trial(task, (), "t"))
    assert [r.id.rpartition("::")[2] for r in verdict.assertions if not r.passed] == [], verdict.output
    assert verdict.expected == 3
