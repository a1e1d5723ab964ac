"""Whatever happens to a journal's files, nothing acknowledged is lost in silence: it is all there, or opening says so."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from t1actors.log.aside import set_aside
from t1actors.log.check import check_journals
from t1actors.log.errors import LogError
from t1actors.log.filelog import FileLog
from t1actors.log.segments import list_segments, segment_path
from tests.log.support import frames_of, read_all
from tests.log.test_cut import NAMES, write_run


def harm(files: list[Path], draw: random.Random) -> str:
    """One damage; says which."""
    path = draw.choice(files)
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data)) if data else 0
    match draw.choice(["bit", "bit", "bit", "cut", "zeros", "gone", "twice", "grown"]):
        case "bit" if data:
            data[at] ^= 1 << draw.randrange(8)
            what = f"bit at {at}"
        case "cut":
            del data[at:]
            what = f"cut at {at}"
        case "zeros":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
            what = f"zeros at {at}"
        case "gone":
            path.unlink()
            return f"{path.name} of {path.parent.name} gone"
        case "twice":
            data[at:at] = data[at : at + 200]
            what = f"bytes from {at} twice"
        case _:
            data += draw.randbytes(draw.randint(1, 60))
            what = "more bytes behind"
    path.write_bytes(data)
    return f"{path.name} of {path.parent.name}: {what}"


def leave_zeros(root: Path, draw: random.Random) -> None:
    """Behind each journal's last frame, as a killed writer does."""
    for name in NAMES:
        with segment_path(root / name, list_segments(root / name)[-1]).open("ab") as file:
            file.write(bytes(draw.randint(1, 1500)))


def storm(tmp_path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    whole = tmp_path / "whole"
    log = write_run(whole, draw, segment_bytes=1500)
    original = {name: frames_of(log, name) for name in NAMES}
    assert all(len(list_segments(log.directory(name))) > 1 for name in NAMES)
    for number in range(count):
        root = tmp_path / "harmed"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        if number % 2:
            leave_zeros(root, draw)
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "lock")
        what = f"seed {seed}, damage {number}: {harm(files, draw)}"
        harmed = FileLog(root, "process", segment_bytes=1500)
        noticed = bool(check_journals(harmed).problems)
        for name in NAMES:
            # Read as an actor would, before anything is repaired: never another frame than was written, and none between.
            start = draw.choice([0, draw.randint(0, 60)])
            reader = harmed.open_reader(name, from_sequence=start)
            try:
                found = read_all(reader)
            except LogError:
                noticed = True
            else:
                wanted = [frame for frame in original[name] if frame.reaches(start)]
                assert found == wanted[: len(found)], what
            reader.close()
        for name in NAMES:
            try:
                harmed.open_writer(name).close()
            except LogError:
                noticed = True
            else:
                assert frames_of(harmed, name) == original[name], what
        kept = sum(len(frames_of(harmed, name)) for name in NAMES) if not noticed else -1
        assert noticed or kept == sum(map(len, original.values())), what
        if number % 5 == 0:  # what can be saved fits together, whatever it was
            set_aside(root)
            assert check_journals(harmed).problems == [], what
            for name in NAMES:
                kept_frames = frames_of(harmed, name)
                assert kept_frames == original[name][: len(kept_frames)], what


def test_five_hundred_damages_lose_nothing_in_silence(tmp_path: Path):
    storm(tmp_path, 500, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_five_thousand_damages_lose_nothing_in_silence(tmp_path: Path, seed: int):
    storm(tmp_path, 500, seed)
