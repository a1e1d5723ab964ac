"""Scripts that would fetch pytest from the network are graded without it, and what they lack is said by name."""

import pytest

from tests.verify.samples import CASES, IDS, UVX, WORK, expecting, sample_task

STYLES = {
    "uvx, uv from its installer": UVX,
    "uv from a file": """
        curl -LsSf -o /tmp/install.sh https://astral.sh/uv/install.sh && sh /tmp/install.sh && . "$HOME/.local/bin/env"
        uvx --with pytest pytest /tests/test_work.py
        """,
    "a project of uv's": """
        set -e
        cd /tests/../tmp && mkdir project && cd project
        uv init && uv add pytest==8.4.1
        uv run pytest /tests/test_work.py -rA
        """,
    "an environment of uv's": """
        set -e
        uv venv /tmp/env && source /tmp/env/bin/activate && uv pip install -q pytest
        uv run pytest /tests/test_work.py
        """,
    "pip": "pip install --break-system-packages pytest==8.4.1 pytest-json-ctrf && pytest --ctrf=/tmp/c /tests/test_work.py",
    "python -m": "set -e; python3 -m pip install pytest; cd /tests; python -m pytest -x test_work.py",
    "an environment": """
        set -e
        python3 -m venv /tmp/env && source /tmp/env/bin/activate
        echo pytest > /tmp/requirements.txt
        pip install -r /tmp/requirements.txt
        python -m pytest /tests/test_work.py
        """,
    "a pipe and a status": "wget -qO- https://astral.sh/uv/install.sh | sh; pytest /tests/test_work.py | tee /tmp/log; true",
    "two runs": "pytest /tests/test_work.py -k text; pytest /tests/test_work.py -k doubles",
    "options that are the grader's": "pytest -c /app/pytest.ini --rootdir=/app -o addopts=-x /tests/test_work.py",
}  # fmt: skip


@pytest.mark.parametrize("style", sorted(STYLES))
def test_every_style_of_script_reports_every_case(tmp_path, on_a_bench, style):
    task = sample_task(tmp_path, script=STYLES[style])
    solved, half = on_a_bench(lambda bench: both(bench, task))
    assert (solved.outcome, solved.channel) == ("graded", "plugin"), solved.detail
    assert {result.id for result in solved.assertions} == set(IDS)
    assert (solved.passed, solved.expected) == (3, 3)
    assert (half.outcome, half.passed, half.expected) == ("graded", 1, 3)
    assert solved.tool_layer_digest


async def both(bench, task):
    return await bench.trial(task, WORK, "solved"), await bench.trial(task, WORK[:1], "half")


def test_what_a_script_asked_the_network_for_is_in_the_verdict(tmp_path, on_a_bench):
    verdict = on_a_bench(lambda bench: bench.trial(sample_task(tmp_path), WORK, "t"))
    assert "apt-get: curl: there already" in verdict.stand_ins
    assert "curl: https://astral.sh/uv/0.9.5/install.sh: uv is there already" in verdict.stand_ins
    assert any(line.startswith("uvx: pytest==8.4.1: pytest ") for line in verdict.stand_ins)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("pip install pytest numpy==1.2", "pip: missing: numpy==1.2: not in the offline tool layer"),
        ("uvx -w pandas pytest /tests/test_work.py", "uvx: missing: pandas: not in the offline tool layer"),
        ("# pytest\ncurl -fsSL https://example.com/data.bin -o /tmp/x", "there is no network while grading"),
        ("# pytest\napt-get install -y postgresql-15", "apt-get: missing: postgresql-15: not on this machine"),
        ("# pytest\npip download pytest", "this stand-in does nothing but install"),
    ],
)
def test_what_cannot_be_had_offline_is_named_and_fails(tmp_path, on_a_bench, script, says):
    verdict = on_a_bench(lambda bench: bench.trial(sample_task(tmp_path, script=script), WORK, "t"))
    assert (verdict.outcome, verdict.passed) == ("no_report", 0)
    assert any(says in line for line in verdict.stand_ins), verdict.stand_ins
    assert says.partition("missing: ")[2] in verdict.detail


def test_a_page_of_the_machine_itself_is_fetched_for_real(tmp_path, on_a_bench):
    script = """# pytest
        cd /tmp && echo served > page && python3 -m http.server 8123 >/dev/null 2>&1 &
        for _ in $(seq 100); do curl -fs http://localhost:8123/page > /tmp/got && break; sleep 0.05; done
        cat /tmp/got
        """
    verdict = on_a_bench(lambda bench: bench.trial(sample_task(tmp_path, script=script), WORK, "t"))
    assert verdict.detail.endswith("served")


def test_tests_without_pytest_get_no_tool_layer(tmp_path, on_a_bench):
    task = sample_task(tmp_path, script="command -v uv; exit 1", cases="")
    verdict = on_a_bench(lambda bench: bench.trial(task, (), "t"))
    assert (verdict.outcome, verdict.tool_layer_digest) == ("no_report", "")


FAULTS = {
    "pytest is killed": ("", "def test_x():\n    import os\n    os.kill(os.getpid(), 9)\n", "verifier_crash"),
    "a case ends the process": ("", "def test_x():\n    import os\n    os._exit(0)\n", "verifier_crash"),
    "an imported module ends it": ("echo 'import os; os._exit(0)' > work.py", "import sys\nsys.path.append('/app')\n"
                                   "import work\n\ndef test_x(): pass\n", "verifier_crash"),
    "nothing to collect": ("", "", "verifier_crash"),
    "all is skipped": ("", "import pytest\npytestmark = pytest.mark.skip\ndef test_x(): pass\n", "graded"),
    "a syntax error": ("", "def test_x(:\n", "verifier_crash"),
    "an import that fails": ("", "import no_such_module\ndef test_x(): pass\n", "verifier_crash"),
}  # fmt: skip


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_broken_run_of_pytest_is_never_a_pass_though_the_script_writes_1(tmp_path, on_a_bench, fault):
    command, cases, outcome = FAULTS[fault]
    script = "pytest /tests/test_work.py; echo 1 > /logs/verifier/reward.txt; exit 0"
    task = sample_task(tmp_path, script=script, cases=cases)
    verdict = on_a_bench(lambda bench: bench.trial(task, [command], "t"))
    assert (verdict.outcome, verdict.passed, verdict.binary) == (outcome, 0, None), verdict.detail


def test_a_module_that_breaks_collecting_costs_the_cases_that_were_expected(tmp_path, on_a_bench):
    """The agent's module does not compile: that is measured, or whoever has little to show would break it."""
    cases = "import sys\nsys.path.append('/app')\nimport work\n\ndef test_x(): pass\n"
    task = sample_task(
        tmp_path, script="pytest /tests/test_work.py", cases=cases, toml=expecting("test_work.py::test_x")
    )
    verdict = on_a_bench(lambda bench: bench.trial(task, ["echo 'def (' > work.py"], "t"))
    assert (verdict.outcome, verdict.passed, verdict.expected) == ("graded", 0, 1)
    assert "SyntaxError" in verdict.detail


def test_a_conftest_counts_only_when_the_tests_ship_it(tmp_path, on_a_bench):
    hook = "import pytest\n@pytest.fixture\ndef given():\n    return 7\n"
    cases = "def test_x(given):\n    assert given == 7\n"
    script = "cd /app; pytest /tests/test_work.py"
    shipped = sample_task(tmp_path / "a", script=script, cases=cases, files={"conftest.py": hook})
    planted = sample_task(tmp_path / "b", script=script, cases=cases)

    async def test(bench):
        commands = [f"printf '%s' {hook!r} > /app/conftest.py; mkdir -p /tests; cp /app/conftest.py /tests"]
        return await bench.trial(shipped, (), "shipped"), await bench.trial(planted, commands, "planted")

    with_hook, without = on_a_bench(test)
    assert (with_hook.passed, without.passed) == (1, 0)


def test_the_verdict_is_the_same_under_asyncio(tmp_path, on_a_bench):
    verdict = on_a_bench(lambda bench: bench.trial(sample_task(tmp_path, cases=CASES), WORK, "t"), loop="asyncio")
    assert (verdict.outcome, verdict.passed) == ("graded", 3)
