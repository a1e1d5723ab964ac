"""Events: what is written today can be read by any MessagePack reader today, and by this package for ever.

`golden/events-v1.txt` holds one encoded event of every kind, in hex, as version 1 wrote it. It is never rewritten:
after adding a kind, run `python -m tests.golden_events`, which appends what is missing.
"""

import msgpack
import msgspec
import pytest

from t1actors import events
from t1actors.events import StepOpened, TrialSpec, TurnSampled, UnknownEvent, decode, encode
from tests.golden_events import KINDS, example, golden


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_event_comes_back_as_it_was_written(kind):
    event = example(KINDS[kind])
    assert decode(encode(event)) == event
    assert encode(decode(encode(event))) == encode(event)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_event_is_a_plain_messagepack_map_that_names_its_kind_and_version(kind):
    event = example(KINDS[kind])
    plain = msgpack.unpackb(encode(event), raw=False)
    assert plain["kind"] == kind
    assert plain["v"] == 1
    assert set(plain) == {"kind", *(f.name for f in msgspec.structs.fields(event))}
    assert decode(msgpack.packb(plain)) == event


def test_the_golden_file_has_every_kind_of_event():
    missing = sorted(set(KINDS) - set(golden()))
    assert not missing, f"new kinds {missing}: append them with `python -m tests.golden_events`"


def known_of(now, old):
    """``now`` without what ``old`` does not have yet, in structs inside it too."""
    if isinstance(old, dict) and isinstance(now, dict):
        return {name: known_of(now.get(name, "no such field now"), value) for name, value in old.items()}
    if isinstance(old, list) and isinstance(now, list) and len(old) == len(now):
        return [known_of(*pair) for pair in zip(now, old, strict=True)]
    return now


@pytest.mark.parametrize("kind", sorted(golden()))
def test_an_event_written_by_version_1_still_means_the_same(kind):
    old = msgpack.unpackb(golden()[kind], raw=False)
    event = decode(golden()[kind])
    assert type(event).__name__ == kind
    now = msgpack.unpackb(encode(event), raw=False)
    assert known_of(now, old) == old, "a field was renamed, removed or changed its type"


def test_an_unknown_kind_is_carried_as_the_bytes_it_came_in():
    raw = msgpack.packb({"kind": "MoonPhaseChanged", "v": 3, "phase": [1, 2, {"deep": None}]})
    event = decode(raw)
    assert event == UnknownEvent("MoonPhaseChanged", raw)
    assert encode(event) == raw


def test_unknown_fields_of_a_known_kind_are_ignored():
    plain = msgpack.unpackb(encode(events.RunStopped(reason="done")))
    assert decode(msgpack.packb({**plain, "added_later": [1, 2]})) == events.RunStopped(reason="done")


def test_a_known_kind_with_a_wrong_type_is_an_error_that_names_the_field():
    trial = TrialSpec(trial="s0.t0", index=0, task="t", seed=1, turn_limit=3)
    opened = StepOpened(
        step=0, purpose="train", version="v", version_index=0, batch_size=1, temperature=1.0, trials=(trial,)
    )
    plain = msgpack.unpackb(encode(opened))
    plain["trials"][0]["seed"] = "seven"
    with pytest.raises(msgspec.ValidationError, match=r"\$\.trials\[0\]\.seed"):
        decode(msgpack.packb(plain))


def test_encoding_does_not_depend_on_how_an_event_was_built():
    forward = TurnSampled.__struct_fields__
    whole = example(TurnSampled)
    again = TurnSampled(**{name: getattr(whole, name) for name in reversed(forward)})
    assert encode(again) == encode(whole)
