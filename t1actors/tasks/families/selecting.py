"""Families that select lines of a file: grep, head."""

from __future__ import annotations

from t1actors.tasks.draws import Draws
from t1actors.tasks.families.shape import NewName, SubGoal, holds, wrong
from t1actors.tasks.words import WORDS


def grep(draws: Draws, new_name: NewName) -> SubGoal:
    """Keep the lines that hold a word."""
    data, out, word = new_name() + ".log", new_name() + ".txt", new_name()
    others = [other for other in draws.sample(WORDS, 6) if other != word]
    hits = [f"{word} {draws.pick(others)}" for _ in range(draws.between(2, 4))]
    misses = [f"{draws.pick(others)} {draws.between(1, 9)}" for _ in range(len(hits) + 1)]
    lines = draws.shuffled(hits + misses)
    kept = [line for line in lines if word in line]
    return SubGoal(
        text=f"keep lines with {word} of {data} in {out}",
        files=((data, "".join(f"{line}\n" for line in lines)),),
        right=(f"grep {word} {data} > {out}",),
        wrong=(
            wrong(2, f"grep -v {word} {data} > {out}"),
            wrong(2, f"grep -c {word} {data} > {out}"),
            wrong(2, f"grep {word} {data}"),
        ),
        assertions=(
            holds("is_file", out),
            holds("line_count", out, len(kept)),
            holds("content", out, "".join(f"{line}\n" for line in kept)),
        ),
    )


def head(draws: Draws, new_name: NewName) -> SubGoal:
    """The first or the last lines; never more than nine in all, so that the default of ten lines takes too many."""
    data, out, wanted = new_name() + ".log", new_name() + ".txt", draws.between(2, 5)
    lines = draws.sample(WORDS, wanted + draws.between(2, 4))
    last = draws.chance(0.4)
    kept = lines[-wanted:] if last else lines[:wanted]
    tool, other_tool = ("tail", "head") if last else ("head", "tail")
    return SubGoal(
        text=f"put {'last' if last else 'first'} {wanted} lines of {data} in {out}",
        files=((data, "".join(f"{line}\n" for line in lines)),),
        right=(f"{tool} -n {wanted} {data} > {out}",),
        wrong=(
            wrong(3, f"{tool} {data} > {out}"),
            wrong(2, f"{other_tool} -n {wanted} {data} > {out}"),
            wrong(1, f"{tool} -n {wanted} {data}"),
        ),
        assertions=(
            holds("is_file", out),
            holds("line_count", out, wanted),
            holds("content", out, "".join(f"{line}\n" for line in kept)),
        ),
    )
