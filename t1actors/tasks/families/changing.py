"""Families that change what is there: chmod, rename, sed, tar."""

from __future__ import annotations

from t1actors.tasks.draws import Draws
from t1actors.tasks.families.shape import NewName, SubGoal, holds, wrong

MODES = ("755", "751", "715", "557", "551", "555", "511")
"""No digit is one that an untouched file has (600, or 644 after a checkout), so doing nothing earns nothing; and none
is 711, which ``chmod +x`` makes of 600."""


def chmod(draws: Draws, new_name: NewName) -> SubGoal:
    """Set a mode."""
    file, mode = new_name() + ".dat", draws.pick(MODES)
    return SubGoal(
        text=f"set mode {mode} on {file}",
        files=((file, "x\n"),),
        right=(f"chmod {mode} {file}",),
        wrong=(
            wrong(2, f"chmod +x {file}"),
            wrong(2, f"chmod {mode[0]}00 {file}"),
            wrong(2, f"chmod 0{mode[1]}0 {file}"),
        ),
        assertions=tuple(holds("mode_digit", file, place, int(digit)) for place, digit in enumerate(mode)),
    )


def rename(draws: Draws, new_name: NewName) -> SubGoal:
    """Give three files another ending."""
    directory = new_name()
    stems = [f"{directory}/{new_name()}" for _ in range(3)]
    return SubGoal(
        text=f"rename txt to md in {directory}",
        files=tuple((f"{stem}.txt", "r\n") for stem in stems),
        right=(f"for f in {directory}/*.txt; do mv $f ${{f%.txt}}.md; done",),
        wrong=(
            wrong(3, f"mv {directory}/*.txt {directory}/*.md"),
            wrong(3, f"for f in {directory}/*.txt; do cp $f ${{f%.txt}}.md; done"),
        ),
        assertions=(*(holds("is_file", f"{stem}.md") for stem in stems), holds("absent", f"{stems[0]}.txt")),
    )


def sed(draws: Draws, new_name: NewName) -> SubGoal:
    """The old word stands twice in one line, so that forgetting ``g`` shows."""
    file, old, new, other = new_name() + ".txt", new_name(), new_name(), new_name()
    body = f"{old} {other} {old}\n{other}\n{other} {old}\n"
    return SubGoal(
        text=f"replace {old} by {new} in {file}",
        files=((file, body),),
        right=(f"sed -i s/{old}/{new}/g {file}",),
        wrong=(wrong(3, f"sed s/{old}/{new}/g {file}"), wrong(3, f"sed -i s/{old}/{new}/ {file}")),
        assertions=(
            holds("contains", file, new),
            holds("lacks", file, old),
            holds("content", file, body.replace(old, new)),
        ),
    )


def tar(draws: Draws, new_name: NewName) -> SubGoal:
    """Pack files into an archive."""
    directory, archive = new_name(), new_name() + ".tgz"
    first, second = f"{directory}/{new_name()}", f"{directory}/{new_name()}"
    return SubGoal(
        text=f"pack dir {directory} into {archive}",
        files=((first, "1\n"), (second, "2\n")),
        right=(f"tar czf {archive} {directory}",),
        wrong=(
            wrong(3, f"tar cf {archive} {directory}"),
            wrong(2, f"tar xzf {archive} {directory}"),
            wrong(1, f"tar czf {archive} {first}"),
        ),
        assertions=(
            holds("is_file", archive),
            holds("gzip", archive),
            holds("tar_has", archive, first),
            holds("tar_has", archive, second),
        ),
    )
