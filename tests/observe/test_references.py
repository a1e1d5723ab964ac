"""The state that a run would go on from must be there, until it is finished."""

import msgspec
import pytest

from t1actors.events import Payload, RunFinished
from t1actors.log.blobs import MemoryBlobs
from t1actors.log.frame import CommitHead, Frame
from t1actors.log.merged import Entry
from t1actors.observe.references import References
from tests.actors.samples import actor_updated, critic_updated

GONE = Payload(digest="ab" * 32, size_bytes=1)


def entry(journal: str, sequence: int) -> Entry:
    return Entry(Frame(journal, 0, 1, CommitHead(), ()), sequence, b"")


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("part", ["actor", "critic"])
def test_a_run_whose_latest_state_is_missing_cannot_go_on(part: str, finished: bool):
    references = References(MemoryBlobs())
    events = (
        [actor_updated(4, "v"), actor_updated(5, "w")] if part == "actor" else [critic_updated(4), critic_updated(5)]
    )
    kept, last = events
    references.apply(entry(part, 1), kept)
    references.apply(entry(part, 2), msgspec.structs.replace(last, state=GONE))
    if finished:
        references.apply(entry("publisher", 3), RunFinished(steps=6, version="w"))
    errors = [finding.text for finding in references.finish() if finding.severity == "error"]
    assert any(f"the run cannot go on: the {part}'s latest state" in text for text in errors) is not finished


def test_an_older_state_may_be_gone():
    references = References(MemoryBlobs())
    references.apply(entry("critic", 1), msgspec.structs.replace(critic_updated(4), state=GONE))
    references.apply(entry("critic", 2), critic_updated(5))
    assert not [finding for finding in references.finish() if "cannot go on" in finding.text]
