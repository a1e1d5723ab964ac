"""Parts that no other test runs come to their end in quick mode, as commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "tables", "gates"), [("variance", 3, 3), ("fidelity", 2, 4)])
def test_a_part_answers_with_its_tables_and_gates(part, tables, gates, tmp_path):
    path = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench.learning", part, "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(path.read_text())
    assert (len(found["tables"]), len(found["gates"])) == (tables, gates)
    assert "NaN" not in path.read_text()


@pytest.mark.slow
def test_a_step_of_the_simulation_is_made_and_recovered_by_every_actor(tmp_path):
    path = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench.sim", "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    _, step = json.loads(path.read_text())["tables"]
    rows = {row["what"]: row["events"] for row in step["rows"]}
    assert set(rows) > {"publisher", "pool", "sampler", "verifier", "assembler", "critic", "actor"}
    assert min(rows.values()) > 0


def test_stitching_is_measured_beside_its_floor_and_plain_lists(tmp_path):
    path = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench.tito", "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = json.loads(path.read_text())["tables"]
    assert {row["what"].partition(":")[0] for row in table["rows"]} > {
        "floor",
        "stitch_foreign",
        "before it",
        "after it",
    }


def test_the_endpoints_own_work_is_measured_at_several_places_of_a_conversation(tmp_path):
    path = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench.endpoint", "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    overhead, rendering = json.loads(path.read_text())["tables"]
    assert [row["turn of the conversation"] for row in overhead["rows"]] == [2, 4, 2, 4]
    assert [row["turns"] for row in rendering["rows"]] == [2, 4]
