"""What a Docker daemon is sent to build a recipe: a Dockerfile that its classic builder reads, and the files it copies.

The recipe was read by our own parser, so what is refused is refused by it. What the classic builder does not know is said
in other words: a RUN is the program and its arguments, a heredoc is a file of the context, and files with ``--chmod`` lie
there a second time. Guarantees: the same recipe and files give the same bytes; a file that .dockerignore hides is not sent.

    Dockerfile   files/...  the environment directory   modes/755/...  the same with that mode   documents/N/NAME  heredocs
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from t1actors.images.copy import COPIED_AT_S
from t1actors.images.errors import BuildFailed
from t1actors.images.ignore import Ignored
from t1actors.images.image import this_architecture
from t1actors.tasks.dockerfile import copy_words, run_words
from t1actors.tasks.dockerwords import expand
from t1actors.tasks.recipe import Instruction, Recipe, arguments

T = TypeVar("T")
SCRATCH = "scratch"
_FILES = "files"
_DOCUMENT_MODE = 0o644


@dataclass(frozen=True)
class Step:
    """One line of the Dockerfile that is sent: where it comes from, and the instruction as it was written."""

    place: str
    text: str


@dataclass(frozen=True)
class Rendered:
    """``bases`` are the images that it is built from, ``named`` what the recipe calls them (another where one stands in);
    ``documents`` are files by their paths in the context, with modes; ``modes`` those the files are sent again with."""

    dockerfile: str
    steps: tuple[Step, ...]
    bases: tuple[str, ...]
    named: tuple[str, ...]
    documents: tuple[tuple[str, bytes, int], ...]
    modes: tuple[str, ...]

    @property
    def is_an_image(self) -> bool:
        """Nothing is done to the one image that it names."""
        return len(self.steps) == 1


def render(recipe: Recipe, *, stand_in: str = "") -> Rendered:
    """``stand_in`` takes the place of every image that the recipe names. Raises ``BuildFailed``."""
    return _Renderer(recipe, stand_in).run()


def pack(rendered: Rendered, directory: Path) -> bytes:
    """The context as a tar; COPYs find their files in ``directory``."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add_file(tar, "Dockerfile", rendered.dockerfile.encode(), _DOCUMENT_MODE)
        for path, data, mode in rendered.documents:
            _add_file(tar, path, data, mode)
        found = list(_found(directory))
        _add_tree(tar, _FILES, found, lambda mode: mode)
        for text in rendered.modes:
            _add_tree(tar, f"modes/{text}", found, lambda _, forced=int(text, 8): forced)
        end = tar.offset
    # Without the padding after the end, which a daemon leaves unread: and who has not read all does not hear one hang up.
    return stream.getvalue()[: end + 2 * tarfile.BLOCKSIZE]


class _Renderer:
    def __init__(self, recipe: Recipe, stand_in: str) -> None:
        self._recipe = recipe
        self._stand_in = stand_in
        self._lines: list[str] = []
        self._steps: list[Step] = []
        self._bases: dict[str, None] = {}
        self._named: dict[str, None] = {}
        self._documents: list[tuple[str, bytes, int]] = []
        self._modes: dict[str, None] = {}

    def run(self) -> Rendered:
        outer: dict[str, str] = {}
        machine = this_architecture()
        platform = {"PLATFORM": f"linux/{machine}", "OS": "linux", "ARCH": machine}
        predefined = {f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in platform.items()}
        wanted = {
            word
            for stage in self._recipe.stages
            for i in stage.instructions
            if i.word == "ARG"
            for word in i.text.split()
        }
        outer.update(predefined)
        for name in sorted(wanted & set(predefined)):
            self._add(f"ARG {name}={predefined[name]}", Step(self._recipe.file, f"ARG {name}"))
        for argument in self._recipe.arguments:
            place = self._place(argument)
            declared = _checked(place, lambda a=argument: arguments(a.text, outer, {}))
            outer.update((name, value) for name, value in declared if value is not None)
            self._add(f"ARG {argument.text}", Step(place, str(argument)))
        for number, stage in enumerate(self._recipe.stages):
            place = f"{self._recipe.file}, line {stage.line}: FROM {stage.base}"
            base = self._image(_checked(place, lambda s=stage: expand(s.base, outer)), number, place)
            named = f" AS {stage.name}" if stage.name else ""
            self._add(f"FROM {base}{named}", Step(place, f"FROM {stage.base}{named}"))
            for instruction in stage.instructions:
                self._add(self._line(instruction, number), Step(self._place(instruction), str(instruction)))
        return Rendered(
            "".join(f"{line}\n" for line in self._lines),
            tuple(self._steps),
            tuple(self._bases),
            tuple(self._named),
            tuple(self._documents),
            tuple(self._modes),
        )

    def _add(self, line: str, step: Step) -> None:
        self._lines.append(line)
        self._steps.append(step)

    def _place(self, instruction: Instruction) -> str:
        return f"{self._recipe.file}, line {instruction.line}: {str(instruction).splitlines()[0]}"

    def _image(self, name: str, before: int, place: str) -> str:
        """What to call the image or stage ``name``."""
        if not name:
            raise BuildFailed(f"{place} names no image")
        if name == SCRATCH or name.lower() in {stage.name for stage in self._recipe.stages[:before]}:
            return name
        self._named[name] = None
        image = self._stand_in or name
        self._bases[image] = None
        return image

    def _line(self, instruction: Instruction, stage: int) -> str:
        place = self._place(instruction)
        match instruction.word:
            case "RUN" | "CMD":
                return f"{instruction.word} {_as_list(_checked(place, lambda: run_words(instruction)))}"
            case "COPY":
                return self._copy(instruction, stage, place)
            case "ARG" | "ENV" | "WORKDIR":
                return f"{instruction.word} {instruction.text}"

    def _copy(self, instruction: Instruction, stage: int, place: str) -> str:
        flags = dict(instruction.flags)
        *sources, target = _checked(place, lambda: copy_words(instruction))
        mode, origin = flags.get("chmod", ""), flags.get("from", "")
        options = f"--chown={flags['chown']} " if "chown" in flags else ""
        if origin:
            if mode or "$" in origin:
                what = "--chmod" if mode else "a variable"
                raise BuildFailed(
                    f"{place}: {what} with --from is not known to a Docker daemon's classic builder; write it another way",
                    step=str(instruction),
                )
            known = origin if origin.isdigit() and int(origin) < stage else self._image(origin, stage, place)
            return f"COPY --from={known} {options}{_as_list([*sources, target])}"
        if mode:
            self._modes[mode] = None
        documents = {f"<<{document.name}": document for document in instruction.heredocs}
        found: list[str] = []
        for source in sources:
            document = documents.get(re.sub("""[-"']""", "", source))
            if document is None:
                found.append(f"modes/{mode}/{source}" if mode else f"{_FILES}/{source}")
                continue
            if "$" in document.text and not document.literal:
                raise BuildFailed(
                    f"{place}: variables in a COPY's heredoc are not known to a Docker daemon's classic builder; quote its "
                    f"name ('{document.name}') or write it in a RUN",
                    step=str(instruction),
                )
            path = f"documents/{len(self._documents)}/{document.name}"
            self._documents.append((path, document.text.encode(), int(mode, 8) if mode else _DOCUMENT_MODE))
            found.append(path)
        return f"COPY {options}{_as_list([*found, target])}"


def _checked(place: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except ValueError as error:
        raise BuildFailed(f"{place}: {error}") from error


def _as_list(words: Iterable[str]) -> str:
    return json.dumps(list(words))


# --- files ------------------------------------------------------------------------------------------------------------


def _found(directory: Path) -> Iterator[tuple[str, Path, os.stat_result]]:
    """Every file, directory and link that may be copied, by its path, parents first."""
    ignored = Ignored.of(directory)

    def look(above: str) -> Iterator[tuple[str, Path, os.stat_result]]:
        for name in sorted(os.listdir(directory / above), key=os.fsencode):
            path = f"{above}/{name}" if above else name
            file = directory / path
            status = os.lstat(file)
            is_directory = stat.S_ISDIR(status.st_mode)
            hidden = ignored.hides(path)
            if not hidden and (is_directory or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                yield path, file, status
            if is_directory and (not hidden or ignored.takes_back):
                yield from look(path)

    return look("")


def _add_tree(
    tar: tarfile.TarFile, top: str, found: Iterable[tuple[str, Path, os.stat_result]], mode_of: Callable[[int], int]
) -> None:
    made = tarfile.TarInfo(top)
    made.type, made.mode, made.mtime = tarfile.DIRTYPE, 0o755, COPIED_AT_S
    tar.addfile(made)
    for path, file, status in found:
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode):
            _add_file(tar, f"{top}/{path}", file.read_bytes(), mode_of(mode))
            continue
        member = tarfile.TarInfo(f"{top}/{path}")
        member.mtime = COPIED_AT_S
        if stat.S_ISLNK(status.st_mode):
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, os.readlink(file), 0o777
        else:
            member.type, member.mode = tarfile.DIRTYPE, mode_of(mode)
        tar.addfile(member)


def _add_file(tar: tarfile.TarFile, path: str, data: bytes, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = len(data), mode, COPIED_AT_S
    tar.addfile(member, io.BytesIO(data))
