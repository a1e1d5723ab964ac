"""`t1 log check`'s own eyes: a sound run has no findings, and each broken invariant is found where it was broken."""

import msgspec
import pytest

from t1actors.events import (
    ActorUpdated,
    BatchSealed,
    EffectFinished,
    Graded,
    SandboxSealed,
    StepOpened,
    TrajectoryAssembled,
    TurnExecuted,
    TurnSampled,
    VersionSpan,
    WeightsPublished,
)
from t1actors.log.blobs import MemoryBlobs
from t1actors.log.memory import MemoryLog
from t1actors.log.merged import merged
from t1actors.observe.invariants import Invariants, check_events
from t1actors.observe.references import References
from t1actors.tito.stored import store
from tests.observe.recorded import Recorder, half_a_run, payload, record, whole_run

replace = msgspec.structs.replace


def errors_of(change):
    log = MemoryLog()
    recorder = Recorder(log)
    recorder.change = change
    whole_run(recorder)
    return [f for f in check_events(merged(log)) if f.severity == "error"]


def on(kind, make, **where):
    """Change events of ``kind`` whose fields are as ``where`` says."""

    def change(event):
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in where.items()):
            return make(event)
        return event

    return change


def test_a_sound_run_has_no_findings():
    log = MemoryLog()
    whole_run(Recorder(log))
    assert check_events(merged(log)) == []


@pytest.mark.parametrize(
    ("change", "journal", "words"),
    [
        (
            on(TurnSampled, lambda e: replace(e, context_ids=(1, 2)), trial="s3.t1", turn=1),
            "sampler",
            "trial s3.t1, turn 1: 11 routing rows for 11 ids",
        ),
        (
            on(TurnSampled, lambda e: replace(e, logprobs=(-0.1,)), trial="s3.t1", turn=0),
            "sampler",
            "1 log-probs for 3 sampled ids",
        ),
        (
            on(
                TurnSampled,
                lambda e: replace(e, versions=(VersionSpan(version="other", start=0, end=3),)),
                trial="s4.t0",
                turn=0,
            ),
            "sampler",
            "sampled by other, step 4 has version-1",
        ),
        (
            on(TurnSampled, lambda e: replace(e, versions=()), trial="s4.t0", turn=0),
            "sampler",
            "the versions of 0 of 3 sampled ids",
        ),
        (on(TurnSampled, lambda e: replace(e, turn=0), trial="s3.t1", turn=1), "sampler", "a second TurnSampled"),
        (on(TurnExecuted, lambda e: replace(e, trial="s0.t0"), trial="s0.t1"), "pool", "a second TurnExecuted"),
        (on(Graded, lambda e: replace(e, reward=0.9), trial="s3.t0"), "assembler", "has reward 0.05, graded 0.9"),
        (on(Graded, lambda e: replace(e, outcome="infra"), trial="s3.t0"), "verifier", "outcome infra with reward"),
        (on(Graded, lambda e: replace(e, passed=4), trial="s3.t0"), "verifier", "4 of 4 passed where 1"),
        (
            on(SandboxSealed, lambda e: replace(e, layer=payload(b"x")), trial="s3.t0"),
            "verifier",
            "graded another layer than was sealed",
        ),
        (
            on(SandboxSealed, lambda e: replace(e, trial="s3.t1"), trial="s3.t0"),
            "verifier",
            "s3.t0 was graded before its sandbox was sealed",
        ),
        (
            on(Graded, lambda e: replace(e, reward=0.15), trial="s3.t0"),
            "verifier",
            "reward 0.15 for 1 passed at verify.reward_scale 20",
        ),
        (on(StepOpened, lambda e: replace(e, step=9), step=4), "publisher", "step 9 opened where step 4 was to come"),
        (on(StepOpened, lambda e: replace(e, batch_size=1), step=4), "assembler", "2 trials, 1 were wanted"),
        (
            on(BatchSealed, lambda e: replace(e, items=(replace(e.items[0], index=7),)), step=4),
            "assembler",
            "trial s4.t0 is number 0 of step 4",
        ),
        (on(ActorUpdated, lambda e: replace(e, staleness=2), step=4), "actor", "staleness 2, must be 1"),
        (
            on(ActorUpdated, lambda e: replace(e, behaviour_version="x"), step=4),
            "actor",
            "trained against x, sampled by version-1",
        ),
        (on(StepOpened, lambda e: replace(e, version="x"), step=4), "publisher", "version x, which was not published"),
        (
            on(BatchSealed, lambda e: replace(e, items=e.items[::-1]), step=4),
            "assembler",
            "not in index order",
        ),
        (on(BatchSealed, lambda e: replace(e, digest="0"), step=4), "assembler", "its digest is not that of"),
        (
            on(TrajectoryAssembled, lambda e: replace(e, drift_in_loss=1), trial="s4.t0"),
            "assembler",
            "1 tokens drifted",
        ),
        (on(TrajectoryAssembled, lambda e: replace(e, ids=13), trial="s4.t0"), "assembler", "its turns have 12 and 6"),
        (
            on(EffectFinished, lambda e: replace(e, key="s0.t1/create"), key="s0.t0/create"),
            "pool",
            "effect s0.t1/create ended without having been begun",
        ),
    ],
)
def test_a_broken_invariant_is_found_where_it_was_broken(change, journal, words):
    found = errors_of(change)
    assert any(f.journal == journal and words in f.message for f in found), [f.text for f in found]


def test_a_version_may_be_published_again_after_another_but_not_twice_in_a_row():
    def published(version: str) -> WeightsPublished:
        return WeightsPublished(version=version, version_index=0, size_bytes=1, seconds=0.0)

    log = MemoryLog()
    recorder = Recorder(log)
    for version in ("initial", "warmed", "initial"):
        recorder.emit("publisher", published(version))
    assert check_events(merged(log)) == []
    recorder.emit("publisher", published("initial"))
    [finding] = check_events(merged(log))
    assert "a second WeightsPublished" in finding.message


def test_an_effect_left_open_by_a_finished_run_is_a_note():
    log = MemoryLog()
    recorder = Recorder(log)
    recorder.change = on(
        EffectFinished,
        lambda e: TurnExecuted(trial="s0.t0", turn=7, observation="", exit_code=0, seconds=0),
        key="s0.t0/create",
    )
    whole_run(recorder)
    found = check_events(merged(log))
    assert [(f.severity, f.journal) for f in found] == [("note", "pool")]
    assert "s0.t0/create had begun and not ended" in found[0].message


def references(change=lambda event: event):
    log = MemoryLog()
    recorder = Recorder(log)
    recorder.change = change
    whole_run(recorder)
    checker, invariants = References(MemoryBlobs()), Invariants()
    for entry in merged(log):
        event = invariants.apply(entry)
        assert event is not None
        checker.apply(entry, event)
    return checker.finish()


def test_payloads_that_are_what_they_are_named_have_no_findings():
    assert references() == []


def test_a_payload_with_other_bytes_is_an_error_that_names_the_field():
    bad = payload(b"right")
    found = references(on(ActorUpdated, lambda e: replace(e, state=replace(bad, inline=b"wrong")), step=3))
    assert [f.severity for f in found] == ["error"]
    assert "ActorUpdated.state" in found[0].message


def test_a_missing_trajectory_is_an_error_and_a_missing_cache_is_a_note():
    gone = replace(payload(b"gone"), inline=None)
    lost = references(on(TrajectoryAssembled, lambda e: replace(e, record=gone), trial="s3.t0"))
    assert [f.severity for f in lost] == ["error"]
    assert gone.digest in lost[0].message
    kept = references(on(ActorUpdated, lambda e: replace(e, state=gone), step=3))
    assert [f.severity for f in kept] == ["note"]


def test_a_record_that_is_not_what_its_event_says_is_an_error():
    other = payload(b"\x81\xa1a\x01")
    found = references(on(TrajectoryAssembled, lambda e: replace(e, record=other), trial="s3.t0"))
    assert "not a trajectory record" in found[0].message
    counted = references(on(TrajectoryAssembled, lambda e: replace(e, sampled=5), trial="s3.t0"))
    assert "12 ids, 6 sampled; the event says 12, 5" in counted[0].message


def test_a_record_with_another_token_or_log_prob_than_was_sampled_is_an_error():
    for make in (
        lambda e: replace(e, sampled_ids=(e.sampled_ids[0] + 1, *e.sampled_ids[1:])),
        lambda e: replace(e, logprobs=(e.logprobs[0] - 1.0, *e.logprobs[1:])),
    ):
        [found] = references(on(TurnSampled, make, trial="s3.t0", turn=0))
        assert "trajectory of trial s3.t0: sampled token 0 is" in found.message


def in_two_chunks(event: TrajectoryAssembled) -> TrajectoryAssembled:
    """As if the second turn went on from a fork: the first turn is a chunk, and context in the other."""
    whole = record(event.trial, event.index)
    (path,) = whole.chunks
    first = replace(
        path,
        ids=path.ids[:24],
        mask=path.mask[:6],
        logprobs=path.logprobs[:24],
        routing=path.routing[:20],
        routing_shape=(5, 2, 2),
        versions=path.versions[:1],
        turns=path.turns[:1],
    )
    second = replace(
        path,
        mask=bytes(9) + path.mask[9:],
        logprobs=bytes(36) + path.logprobs[36:],
        versions=path.versions[1:],
        turns=path.turns[1:],
    )
    # The later turn's chunk lies first: chunks are in no order of turns.
    stored = store(replace(whole, chunks=(second, first)), MemoryBlobs()).record
    return replace(event, record=stored, ids=18, chunks=2)


def test_a_trajectory_of_several_chunks_has_its_turns_tokens_once_and_shared_context_in_each():
    def short(event: TrajectoryAssembled) -> TrajectoryAssembled:
        return replace(in_two_chunks(event), ids=11)

    assert references(on(TrajectoryAssembled, in_two_chunks, trial="s3.t0")) == []
    assert not [f for f in errors_of(on(TrajectoryAssembled, in_two_chunks, trial="s3.t0")) if "its turns" in f.message]
    found = errors_of(on(TrajectoryAssembled, short, trial="s3.t0"))
    assert any("11 ids, 6 sampled; its turns have 12 and 6" in f.message for f in found)


def test_of_a_run_that_did_not_finish_the_open_effects_are_a_note_a_journal():
    log = MemoryLog()
    recorder = Recorder(log)
    half_a_run(recorder)
    recorder.close()
    found = check_events(merged(log))
    assert not [finding for finding in found if finding.severity == "error"]
    assert [finding.message for finding in found if "are open" in finding.message] == [
        "1 effects are open, the oldest step/0/actor: going on performs them again by their keys"
    ]
