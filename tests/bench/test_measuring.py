"""The measuring code itself: what is divided by what, in which order things run, and that tables and JSON agree."""

import argparse
import json

import pytest

from bench.__main__ import head, section
from bench.kills import Killer
from bench.measure import Sample, Spread, interleaved, rate, ratios
from bench.sections import Document, update
from bench.tables import Table, as_json, conclude, markdown, number, parser, text
from t1actors.events import ActorReady, ActorStarted, ActorStopped, StepOpened


def opened(step):
    return StepOpened(
        step=step, purpose="train", version="v", version_index=0, batch_size=1, temperature=1.0, trials=()
    )


def test_what_is_compared_runs_in_turns_and_every_second_round_backwards():
    order = []
    cases = {name: lambda n=name: order.append(n) for name in "abc"}
    samples = interleaved(cases, rounds=2, warmups=1)
    assert "".join(order) == "abc" + "cba" + "abc"
    assert {name: len(found) for name, found in samples.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_ratio_is_taken_round_by_round_so_that_a_slow_round_does_not_show():
    slow_machine = 10.0
    over = [Sample(2.0, 1.0), Sample(2.0 * slow_machine, 3.0)]
    under = [Sample(1.0, 2.0), Sample(1.0 * slow_machine, 2.0)]
    assert ratios(over, under) == Spread(2.0, 2.0, 2.0, 2)
    assert ratios(over, under, of_cpu=True) == Spread(1.0, 0.5, 1.5, 2)


def test_rounds_that_do_not_pair_up_are_refused():
    with pytest.raises(ValueError, match="longer"):
        ratios([Sample(1, 1)], [Sample(1, 1), Sample(1, 1)])


def test_a_rate_is_the_amount_over_wall_seconds():
    assert rate(100, [Sample(2.0, 1.0), Sample(4.0, 1.0), Sample(5.0, 1.0)]) == Spread(25.0, 20.0, 50.0, 3)


def test_nothing_measured_is_an_error_and_not_a_zero():
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.00012, "1.2e-04"),
        (0.0123, "0.0123"),
        (0.5, "0.500"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (12345.6, "12,346"),
    ],
)
def test_a_number_has_about_three_figures(value, shown):
    assert number(value) == shown


def test_a_spread_shows_its_median_and_its_range_unless_there_was_one_value():
    assert text(Spread(2.0, 1.0, 3.0, 5)) == "2.00 (1.00 .. 3.00)"
    assert text(Spread(2.0, 2.0, 2.0, 1)) == "2.00"
    assert text(None) == "-"


def test_a_table_is_the_same_in_markdown_and_in_json():
    table = Table("T", ("what", "ms"), (("a | b", Spread(2.0, 1.0, 3.0, 5)), ("c", None)), "a note")
    lines = markdown(table).splitlines()
    assert lines[0] == "### T"
    assert lines[2].split("|")[1:3] == [" what   ", "                  ms "]
    assert "a \\| b" in lines[4]
    assert lines[-1] == "a note"
    assert len({len(line) for line in lines[2:6]}) == 1
    assert as_json(table) == {
        "title": "T",
        "note": "a note",
        "rows": [
            {"what": "a | b", "ms": {"median": 2.0, "low": 1.0, "high": 3.0, "count": 5}},
            {"what": "c", "ms": None},
        ],
    }


def test_a_row_that_does_not_fit_its_columns_is_refused():
    with pytest.raises(ValueError, match="2 columns"):
        Table("T", ("a", "b"), ((1,),))


def test_a_benchmark_prints_its_tables_and_writes_them_and_its_section_holds_them(tmp_path, capsys):
    arguments = argparse.Namespace(json=tmp_path / "found.json", quick=True)
    table = Table("Speed", ("what", "x"), (("one", 1.5),))
    conclude("engine", arguments, lambda: [table])
    assert markdown(table) in capsys.readouterr().out
    found = json.loads(arguments.json.read_text())
    assert found["benchmark"] == "engine"
    assert found["tables"] == [as_json(table)]
    above = head([found], command="just bench --quick", seconds=90)
    assert "1.5 minutes, `just bench --quick`" in above
    assert "Tiny sizes" in above
    assert f"| processor | {found['machine']['processor']} |" in above
    assert markdown(table) in section(found)


def test_a_benchmark_that_is_told_to_replaces_its_own_section_of_the_results_and_no_other(tmp_path):
    results = tmp_path / "RESULTS.md"
    update(results, {"sim": "old", "engine": "stays"})
    arguments = parser("", writes=True).parse_args(["--write"])
    table = Table("Seeds", ("what", "x"), (("one", 1.5),))
    conclude("sim", arguments, lambda: [table], results=results)
    found = Document.parse(results.read_text()).sections
    assert found["engine"] == "## engine\n\nstays\n"
    assert found["sim"].startswith("## sim\n\n`python -m bench.sim --write`, ")
    assert markdown(table) in found["sim"]
    assert "old" not in found["sim"]


def test_tiny_sizes_do_not_get_into_the_results(capsys):
    with pytest.raises(SystemExit):
        parser("", writes=True).parse_args(["--write", "--quick"])
    assert "not allowed with" in capsys.readouterr().err


def test_the_next_actor_is_killed_when_a_step_opens_and_the_one_before_is_back():
    killer = Killer(("pool", "critic"), first_step=2)
    for place, name in enumerate(("pool", "critic")):
        assert killer.see(0, ActorStarted(actor=name, journal=name, epoch=1, pid=100 + place)) is None
    assert killer.see(1, opened(1)) is None
    assert killer.see(2, opened(2)) == 100
    assert killer.see(3, opened(3)) is None
    assert killer.see(4, ActorReady(actor="pool", epoch=1, seconds=1)) is None
    assert killer.see(4, opened(3)) is None
    killed_ns = killer.found["pool"].killed_ns
    killer.see(killed_ns + 10**9, ActorStopped(actor="pool", epoch=1, exit_code=-9, reason=""))
    killer.see(0, ActorStarted(actor="pool", journal="pool", epoch=2, pid=200))
    killer.see(killed_ns + 3 * 10**9, ActorReady(actor="pool", epoch=2, seconds=1))
    assert (killer.found["pool"].noticed_s, killer.found["pool"].ready_s) == (1.0, 2.0)
    assert killer.see(9, opened(4)) == 101
