"""`t1 task check`, in real sandboxes: what passes, and which part is named where a task is not fit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import anyio
import msgspec
import pytest

from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxUnavailable
from t1actors.sandbox.interface import Created, SandboxSpec
from t1actors.tasks.reader import read_task
from t1actors.tasks.record import CheckRecord
from t1actors.tasks.task import Task, TaskError
from t1actors.verify.task_check import Ground, check_task
from tests.verify.trials import LIMITS, on_a_bench

pytestmark = pytest.mark.usefixtures("host_makes_sandboxes")

ANSWER = "the answer that nobody may find beforehand: 41 and one more\n"
TESTS = """
results=()
assert() { name=$1; shift; if "$@"; then results+=("$name:passed"); else results+=("$name:failed"); fi; }
finish() {
  passed=0; failed=0; list=
  for result in "${results[@]}"; do
    if [ "${result#*:}" = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    list+="${list:+,}{\\"name\\": \\"${result%%:*}\\", \\"status\\": \\"${result#*:}\\", \\"duration\\": 0}"
  done
  printf '{"results": {"tool": {"name": "sh"}, "summary": {"tests": %d, "passed": %d, "failed": %d, "pending": 0,
    "skipped": 0, "other": 0, "start": 0, "stop": 0}, "tests": [%s]}}' \\
    $((passed + failed)) $passed $failed "$list" > /logs/verifier/ctrf.json
}
"""
CHECKS = """
assert made test -f /app/made.txt
assert right grep -q "41 and one more" /app/made.txt
assert kept test -f /app/given.txt
echo "looked at /app"
finish
"""
SOLUTION = f"printf '%s' '{ANSWER}' > /app/made.txt\n"


def make(
    directory: Path, *, toml: str = "", checks: str = CHECKS, solution: str | None = SOLUTION, **given: str
) -> Task:
    """A small task; ``given`` are more files of its environment."""
    files = {
        "task.toml": f'version = "1.0"\n{toml}',
        "instruction.md": "Write made.txt.\n",
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY files/ /app/\n",
        "environment/files/given.txt": "given\n",
        "tests/test.sh": f"{TESTS}{checks}",
        **({} if solution is None else {"solution/solve.sh": solution}),
        **{f"environment/files/{name.replace('_dot_', '.')}": text for name, text in given.items()},
    }
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    return read_task(directory)


def checked(task: Task, runs: int = 1) -> CheckRecord:
    async def body(bench):
        return await check_task(task, bench.agents, key="check", runs=runs, limits=LIMITS)

    return on_a_bench(body)


def problems(record: CheckRecord) -> list[str]:
    return [f"{problem.part}: {problem.text}" for problem in record.problems]


def test_a_sound_task_passes_and_its_ids_and_baseline_are_recorded(tmp_path: Path):
    task = make(tmp_path / "sound")
    record = checked(task)
    assert record.passed, problems(record)
    assert (record.expected, record.baseline) == (("made", "right", "kept"), ("kept",))
    assert (record.runs, record.failed_runs, record.flake_rate, record.flaky) == (1, 0, 0.0, ())
    assert (record.digest, record.isolation) == (task.digest, "namespaces")
    assert record.notes == ("task.toml declares no expected ids; those of the reference's run are recorded",)


def test_a_reference_that_fails_is_named_with_what_it_missed_and_the_tests_own_output(tmp_path: Path):
    record = checked(make(tmp_path / "wrong", solution="echo doing it; echo 42 > made.txt; exit 3\n"))
    assert problems(record) == [
        "reference: the reference fails 1 of 3 assertions: right; solution/solve.sh ended with status 3"
    ]
    assert record.problems[0].output.splitlines() == ["doing it", "looked at /app"]
    assert (record.failed_runs, record.flake_rate) == (1, 1.0)


def test_a_task_without_a_reference_is_not_shown_to_be_solvable(tmp_path: Path):
    record = checked(make(tmp_path / "none", solution=None))
    assert problems(record) == ["reference: no solution/solve.sh: nothing shows that the task can be solved"]


def test_a_task_that_is_solved_by_doing_nothing_fails(tmp_path: Path):
    record = checked(make(tmp_path / "idle", checks="assert kept test -f /app/given.txt\nfinish\n"))
    assert problems(record) == ["untouched: a trial that does nothing passes all 1 assertions"]


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        ("[ -f /app/made.txt ] || exit 1\nassert made true\nfinish\n", "not graded: no_report"),
        ("[ -f /app/made.txt ] || exit 0\nassert made true\nfinish\n", "not graded: verifier_crash"),
        ("[ -f /app/made.txt ] || sleep 60\nassert made true\nfinish\n", "not graded: verifier_timeout"),
    ],
)
def test_tests_that_cannot_grade_an_untouched_environment_fail(tmp_path: Path, checks: str, says: str):
    record = checked(make(tmp_path / "crash", toml="[verifier]\ntimeout_sec = 2\n", checks=checks))
    assert len(record.problems) == 1
    assert record.problems[0].part == "untouched"
    assert says in record.problems[0].text


@pytest.mark.parametrize(
    ("checks", "says"),
    [("if [\n", "not graded: no_report"), ("finish\n", "not graded: verifier_crash"), ("exit 0\n", "verifier_crash")],
    ids=["a syntax error", "no tests", "no report"],
)
def test_tests_that_never_grade_fail_with_what_they_said(tmp_path: Path, checks: str, says: str):
    """S8 of the known faults, before a run instead of in it."""
    record = checked(make(tmp_path / "broken", checks=checks))
    assert [problem.part for problem in record.problems] == ["untouched", "reference"]
    assert all(says in problem.text for problem in record.problems)


class Counting(NamespaceBackend):
    """Tells each sandbox of a reference which one it is."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, name="counting")
        self.solved = 0

    async def create(self, spec: SandboxSpec) -> Created:
        if "reference" in spec.key and "grade" not in spec.key:
            self.solved += 1
        return await super().create(msgspec.structs.replace(spec, env=(("SOLVED", str(self.solved)),)))


def test_tests_that_vary_are_found_over_several_runs_and_the_rate_is_recorded(tmp_path: Path):
    checks = "assert made test -f /app/made.txt\nassert luck grep -qs 2 /app/made.txt\nfinish\n"
    task = make(tmp_path / "flaky", checks=checks, solution="echo $SOLVED > made.txt\n")

    async def body(bench):
        backend = Counting(bench.agents.root.parent / "c")
        async with backend.running():
            return await check_task(task, backend, key="check", runs=3, limits=LIMITS)

    record = on_a_bench(body)
    assert problems(record) == [
        "reference: the reference fails 1 of 2 assertions in 2 of 3 runs: luck",
        "flaky: not the same in all runs: luck",
    ]
    assert record.expected == ("made", "luck")
    assert (record.flaky, record.runs, record.failed_runs) == (("luck",), 3, 2)
    assert record.flake_rate == pytest.approx(2 / 3)


def test_a_program_that_the_environment_lacks_is_named_whoever_makes_it(tmp_path: Path):
    toml = '[metadata.t1]\nprograms = ["bash", "no-such-tool", "nor-this"]\n'
    record = checked(make(tmp_path / "lacking", toml=toml))
    assert problems(record) == ["needs: needs no-such-tool, nor-this, and its environment has none"]


def test_an_environment_that_cannot_be_made_fails_its_build(tmp_path: Path):
    record = checked(make(tmp_path / "large", big="x" * (LIMITS.disk_mb + 8 << 20)))
    assert [problem.part for problem in record.problems] == ["build"]


@pytest.mark.parametrize("loop", ["solution", "tests"])
def test_solution_and_tests_in_the_environment_are_leaks(tmp_path: Path, loop: str):
    held = SOLUTION if loop == "solution" else (TESTS + CHECKS).strip()
    record = checked(make(tmp_path / "leak", notes_dot_md=f"# how to\n{held}\n# end\n"))
    assert len(record.problems) == 1
    assert record.problems[0].part == "leak"
    name = "solution/solve.sh" if loop == "solution" else "tests/test.sh"
    assert record.problems[0].text == f"/app/notes.md holds {name}"


def with_history(directory: Path, toml: str = "") -> Task:
    """A task whose environment is a repository with a later commit that nothing shows any more."""
    task = make(directory, toml=toml)
    place = directory / "environment/files"

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(place), *identity, *arguments], check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "as given")
    (place / "made.txt").write_text(ANSWER)
    git("add", "-A")
    git("commit", "-q", "-m", "as it should be")
    git("reset", "-q", "--hard", "HEAD~1")
    return read_task(task.path)


def test_an_answer_in_the_history_of_the_environment_is_flagged_unless_the_task_means_it(tmp_path: Path):
    record = checked(with_history(tmp_path / "git"))
    assert len(record.problems) == 1
    assert record.problems[0].part == "history"
    assert record.problems[0].text.startswith("blob ")
    assert record.problems[0].text.endswith(" in /app/.git holds /app/made.txt as the reference leaves it")
    assert checked(with_history(tmp_path / "meant", toml='[metadata.t1]\naccept = ["history"]\n')).passed


def test_a_host_that_makes_no_sandboxes_is_told_from_a_bad_task(tmp_path: Path):
    task = make(tmp_path / "sound")

    async def body(bench):
        class Refusing(type(bench.agents)):
            async def create(self, spec):
                raise SandboxUnavailable("making it", "no more", "try elsewhere")

        with pytest.raises(SandboxUnavailable):
            await check_task(task, Refusing(tmp_path / "r", name="r"), key="c", runs=1, limits=LIMITS)

    on_a_bench(body)


def test_a_task_with_only_a_reward_file_is_checked_by_it(tmp_path: Path):
    checks = "[ -f /app/made.txt ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    record = checked(make(tmp_path / "binary", checks=checks))
    assert record.passed, problems(record)
    assert record.expected == ()
    assert record.notes == ("the tests report no assertions, only 0 or 1",)


def test_what_an_image_would_be_built_of_is_looked_through_too(tmp_path: Path):
    """No COPY names the file, and so it is in no sandbox of this host: a build may well take it."""
    directory = tmp_path / "context"
    make(directory)
    (directory / "environment/build.sh").write_text(f"set -e\n{SOLUTION}")
    assert problems(checked(read_task(directory))) == ["leak: environment/build.sh holds solution/solve.sh"]


def test_an_environment_whose_build_fails_or_takes_too_long_is_named(tmp_path: Path):
    task = make(tmp_path / "slow", toml="[environment]\nbuild_timeout_sec = 0.2\n")

    async def failing(task: Task) -> Ground:
        raise TaskError("environment/Dockerfile, line 2: RUN false ended with status 1")

    async def slow(task: Task) -> Ground:
        await anyio.sleep_forever()
        raise AssertionError

    async def body(bench):
        return [
            await check_task(task, bench.agents, key="check", runs=1, limits=LIMITS, ground_of=ground_of)
            for ground_of in (failing, slow)
        ]

    assert [problems(record) for record in on_a_bench(body)] == [
        ["build: environment/Dockerfile, line 2: RUN false ended with status 1"],
        ["build: the environment was not built within 0.2 s"],
    ]
