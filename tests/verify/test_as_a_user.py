"""Grading on sandboxes of an ordinary user: as strict where it has subordinate ids, and where it has none a fence does what
another user would.
"""

import pytest

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
    return lambda test: user.run(lambda: on_a_bench(test, tools=user.directory / "tools"))


def program_that(deed):
    """The work whose program does that when tests run it, and then answers wrongly."""
    program = f"cat > double <<'END'\n#!/bin/bash\n{{ {deed}\n}} 1>&2\necho wrong\nEND\nchmod 755 double"
    return [WORK[0], program]


def test_programs_under_test_can_do_nothing_to_their_grader(tmp_path, on_a_bench, user):
    task = sample_task(tmp_path, toml=expecting(*IDS))
    # All memory, where no control group keeps them apart, is the grader's too: that ends unmeasured.
    all_of_them = sorted(PROGRAMS.keys() - {"takes all memory"})
    deeds = (
        all_of_them if user.way == "one uid" else ["kills the grader", "speaks to the grader's shell", "writes reports"]
    )

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

    async def test(bench):
        return await bench.trial(task, commands, "alone"), await bench.trial(task, [*WORK, *commands], "beside")

    alone, beside = on_a_bench(test)
    assert (alone.outcome, alone.channel, alone.passed) == ("graded", "plugin", 0), alone.detail
    assert (beside.outcome, beside.passed, beside.expected) == ("graded", 3, 3), beside.detail


def test_where_tests_start_everything_as_the_grader_the_verdict_says_that_alone(tmp_path, on_a_bench):
    task = sample_task(tmp_path, toml="subject = 'grader'")
    verdict = on_a_bench(lambda bench: bench.trial(task, WORK, "t"))
    assert verdict.passed == 3
    assert verdict.warnings == ("programs that tests start run as the grader's user: task.toml says so",)
