"""Compares what lies in /app with what the log of the tests' own says: the agent's copy of it may be another by now."""

import collections
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
LARGEST = 1 << 20


def lines_of(path):
    assert os.path.isfile(path), f"{path} is not there"
    assert not os.path.islink(path), f"{path} is a link"
    assert os.path.getsize(path) < LARGEST, f"{path} is too large"
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def told(name):
    return lines_of(f"/app/{name}")


EVENTS = [line for line in lines_of(f"{HERE}/torus.log") if line and not line.startswith("#")]
OWNERS = dict(line.split("\t") for line in lines_of(f"{HERE}/owners.tsv")[1:])
ARRIVALS = [re.search(r"ARRIVE (\w+) berth=(\w+) tons=(\d+)", line).groups() for line in EVENTS if " ARRIVE " in line]
SHIPS = sorted({line.split()[3] for line in EVENTS if line.split()[2] in ("ARRIVE", "LEAVE", "REFUSE")})
REFUSED = collections.Counter(re.search(r'reason="([^"]*)"', line)[1] for line in EVENTS if " REFUSE " in line)
BY_OWNER = collections.Counter(OWNERS.get(ship, "unknown") for ship, *_ in ARRIVALS)
BY_DAY = collections.Counter("-".join(reversed(line.split()[0].split("/"))) for line in EVENTS)


def tons():
    count, sums = collections.Counter(), collections.Counter()
    for _, berth, weight in ARRIVALS:
        count[berth] += 1
        sums[berth] += int(weight)
    return {berth: [str(count[berth]), str(sums[berth])] for berth in sorted(count)}


def from_the_most(counts):
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def test_lines_of_the_ship_are_kept_as_they_are():
    assert told("nadan.txt") == [line for line in EVENTS if " zazen " in line]


def test_ships_are_listed():
    assert set(told("ships.txt")) == set(SHIPS)


def test_ships_are_sorted_and_named_once():
    assert told("ships.txt") == SHIPS


def test_refusals_are_counted():
    found = dict(reversed(line.split(None, 1)) for line in told("refused.txt"))
    assert found == {reason: str(count) for reason, count in REFUSED.items()}


def test_refusals_are_in_order():
    assert [line.split(None, 1)[-1] for line in told("refused.txt")] == from_the_most(REFUSED)


def test_tons_have_their_heading_and_every_berth():
    lines = told("tons.csv")
    assert lines[0] == "berth,arrivals,tons"
    assert [line.split(",")[0] for line in lines[1:]] == list(tons())


def test_tons_are_summed():
    assert {line.split(",")[0]: line.split(",")[1:] for line in told("tons.csv")[1:]} == tons()


def test_days_are_dates_in_order():
    assert [line.split("\t")[0] for line in told("days.tsv")] == sorted(BY_DAY)


def test_days_are_counted():
    assert dict(line.split("\t") for line in told("days.tsv")) == {day: str(count) for day, count in BY_DAY.items()}


def test_owners_are_counted():
    found = dict(line.rsplit(",", 1) for line in told("owners.csv"))
    assert found == {owner: str(count) for owner, count in BY_OWNER.items()}


def test_owners_are_in_order_with_the_unknown():
    assert [line.rsplit(",", 1)[0] for line in told("owners.csv")] == from_the_most(BY_OWNER)
