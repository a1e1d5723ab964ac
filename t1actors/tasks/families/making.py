"""Families that make or place things: mkdir, write, hint, move."""

from __future__ import annotations

from t1actors.tasks.draws import Draws
from t1actors.tasks.families.shape import NewName, SubGoal, holds, wrong


def mkdir(draws: Draws, new_name: NewName) -> SubGoal:
    """Make nested directories."""
    a, b, c = new_name(), new_name(), new_name()
    return SubGoal(
        text=f"make dir {a}/{b}/{c}",
        files=(),
        right=(f"mkdir -p {a}/{b}/{c}",),
        wrong=(wrong(3, f"mkdir {a}/{b}/{c}"), wrong(2, f"mkdir -p {a}/{b}"), wrong(1, f"mkdir {a}")),
        assertions=(holds("is_dir", a), holds("is_dir", f"{a}/{b}"), holds("is_dir", f"{a}/{b}/{c}")),
    )


def write(draws: Draws, new_name: NewName) -> SubGoal:
    """Write words to a file."""
    file, first, second = new_name() + ".txt", new_name(), new_name()
    return SubGoal(
        text=f"write {first} {second} to {file}",
        files=(),
        right=(f"echo {first} {second} > {file}",),
        wrong=(wrong(3, f"echo {first} > {file}"), wrong(1, f"touch {file}"), wrong(2, f"echo {first} {second}")),
        assertions=(
            holds("is_file", file),
            holds("contains", file, first),
            holds("content", file, f"{first} {second}\n"),
        ),
    )


def hint(draws: Draws, new_name: NewName) -> SubGoal:
    """The directory's name is only in a file: one command's output decides the next command."""
    note, directory, file = new_name() + ".txt", new_name(), new_name()
    return SubGoal(
        text=f"{note} names a dir: make it with file {file}",
        files=((note, directory + "\n"),),
        right=(f"cat {note}", f"mkdir {directory}", f"touch {directory}/{file}"),
        wrong=(
            wrong(3, f"cat {note}", f"mkdir {file}", f"touch {file}"),
            wrong(2, f"cat {note}", f"touch {directory}/{file}"),
            wrong(2, f"cat {note}", f"mkdir {directory}"),
        ),
        assertions=(
            holds("is_dir", directory),
            holds("is_file", f"{directory}/{file}"),
            holds("entries", directory, 1),
        ),
    )


def move(draws: Draws, new_name: NewName) -> SubGoal:
    """Move a file into a new directory."""
    file, directory = new_name() + ".dat", new_name()
    return SubGoal(
        text=f"move {file} into new dir {directory}",
        files=((file, "k\n"),),
        right=(f"mkdir {directory}", f"mv {file} {directory}"),
        wrong=(
            wrong(3, f"mv {file} {directory}"),
            wrong(2, f"mkdir {directory}", f"cp {file} {directory}"),
            wrong(1, f"mkdir {directory}"),
        ),
        assertions=(holds("is_dir", directory), holds("is_file", f"{directory}/{file}"), holds("absent", file)),
    )
