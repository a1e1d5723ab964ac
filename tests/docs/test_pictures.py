"""The pictures of events and actors say what the code does."""

import importlib.util
import re
import sys
from types import ModuleType

import pytest

from tests.docs.pages import ROOT, blocks, pages


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    """tools/events_picture.py."""
    path = ROOT / "tools" / "events_picture.py"
    spec = importlib.util.spec_from_file_location("events_picture", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["events_picture"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_picture_of_events_is_what_the_code_makes(picture):
    assert picture.PICTURE.read_text() == picture.svg(), "run `python tools/events_picture.py` and commit the result"


def test_each_arrow_of_the_drawn_diagrams_is_an_event_that_goes_there(picture):
    goes = {
        (by, row.event, to)
        for rows in picture.rows().values()
        for row in rows
        for by in row.states
        for to in row.acts
        if by != to
    }
    arrows = [
        (block.place, by, event, to)
        for block in blocks("mermaid")
        for by, label, to in re.findall(r"^ *(\w+) *-->\|([^|]+)\| *(\w+)", block.text, re.MULTILINE)
        for event in re.split(r"<br/>|, ", label.strip('"'))
    ]
    assert arrows
    wrong = [arrow for arrow in arrows if arrow[1:] not in goes]
    assert not wrong, f"nothing goes there: {wrong}"


def test_the_table_of_actors_says_what_each_reads_and_states(picture):
    page = next(page for page in pages() if page.path == "docs/actors.md")
    for name in picture.ACTORS:
        row = [line for _, line in page.prose if line.startswith(f"| {name} |")][-1]  # the head, too, begins so
        _, reads, states = (cell.strip() for cell in row.strip("|").split("|"))
        found = picture.part(name)
        assert set(reads.split(", ")) == found.reads, f"docs/actors.md, {name}: reads {sorted(found.reads)}"
        assert set(states.split(", ")) == found.states, f"docs/actors.md, {name}: states {sorted(found.states)}"


def test_every_picture_is_small_enough_to_be_kept():
    large = [p.name for p in (ROOT / "docs" / "pictures").iterdir() if p.stat().st_size > 150_000]
    assert not large, large
