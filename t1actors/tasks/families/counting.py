"""Families that compute from a file: count, sum, sort."""

from __future__ import annotations

from t1actors.tasks.draws import Draws
from t1actors.tasks.families.shape import NewName, SubGoal, holds, wrong
from t1actors.tasks.words import WORDS


def count(draws: Draws, new_name: NewName) -> SubGoal:
    """Count lines into a file."""
    data, out, lines = new_name() + ".log", new_name() + ".txt", draws.between(3, 9)
    body = "".join(f"{draws.pick(WORDS)} {draws.pick(WORDS)}\n" for _ in range(lines))
    return SubGoal(
        text=f"count lines of {data} into {out}",
        files=((data, body),),
        right=(f"wc -l < {data} > {out}",),
        wrong=(wrong(4, f"wc -l {data} > {out}"), wrong(1, f"wc -w < {data} > {out}"), wrong(1, f"wc -l {data}")),
        assertions=(holds("is_file", out), holds("contains", out, str(lines)), holds("content", out, f"{lines}\n")),
    )


def sum_column(draws: Draws, new_name: NewName) -> SubGoal:
    """Sum a column into a file."""
    data, out, column = new_name() + ".csv", new_name() + ".txt", draws.between(2, 3)
    totals = (0, 0)
    rows: list[tuple[int, int]] = []
    while totals[0] == totals[1]:  # the other column must be a mistake that shows
        rows = [(draws.between(4, 99), draws.between(4, 99)) for _ in range(draws.between(3, 6))]
        totals = (sum(a for a, _ in rows), sum(b for _, b in rows))
    body = "".join(f"{draws.pick(WORDS)},{a},{b}\n" for a, b in rows)
    program = f"{{s+=${column}}} END {{print s}}"
    return SubGoal(
        text=f"sum column {column} of {data} into {out}",
        files=((data, body),),
        right=(f"awk -F, '{program}' {data} > {out}",),
        wrong=(
            wrong(4, f"awk '{program}' {data} > {out}"),
            wrong(1, f"awk -F, '{{s+=${5 - column}}} END {{print s}}' {data} > {out}"),
            wrong(1, f"awk -F, '{{print ${column}}}' {data} > {out}"),
        ),
        assertions=(
            holds("is_file", out),
            holds("content", out, f"{totals[column - 2]}\n"),
            holds("number", out, 10),
        ),
    )


def sort(draws: Draws, new_name: NewName) -> SubGoal:
    """Sort a file's lines."""
    data, out, down = new_name() + ".dat", new_name() + ".txt", draws.chance(0.5)
    values: list[int] = []
    while sorted(values) == sorted(values, key=str):  # sorting as text must be a mistake that shows
        small, large = draws.sample(range(1, 10), 3), draws.sample(range(10, 300), 3)
        values = draws.shuffled(small + large)
    ordered = sorted(values, reverse=down)
    flag, other_flag = ("-nr", "-n") if down else ("-n", "-nr")
    return SubGoal(
        text=f"sort {data} {'down' if down else 'up'} into {out}",
        files=((data, "".join(f"{value}\n" for value in values)),),
        right=(f"sort {flag} {data} > {out}",),
        wrong=(
            wrong(3, f"sort {data} > {out}"),
            wrong(2, f"sort {other_flag} {data} > {out}"),
            wrong(1, f"sort {flag} {data}"),
        ),
        assertions=(
            holds("is_file", out),
            holds("first_line", out, str(ordered[0])),
            holds("last_line", out, str(ordered[-1])),
            holds("content", out, "".join(f"{value}\n" for value in ordered)),
        ),
    )
