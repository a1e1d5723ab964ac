"""The engine's scheduling, without concurrency."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.config import TrainConfig
from t1actors.engine.core import EngineCore, Job
from t1actors.engine.interface import GenerateRequest
from t1actors.events import VersionSpan
from t1actors.tito.stitch import Turn, stitch_turns
from t1actors.train.actor_step import actor_step
from t1actors.train.batch import Batch
from t1actors.train.networks import geometry_of
from tests.engine.streams import Stream
from tests.models.small import small_policy
from tests.train.tiny_batches import policy_state

POLICY = small_policy()


def drive(streams, *, arrivals=None, max_live=4, prefill_ids=512, forget=(), policy=POLICY):
    """Run every stream's turns; stream i enters at step ``arrivals[i]``; after turn ``(i, t)`` in ``forget`` its cache
    is released."""
    core = EngineCore(policy, max_live_sequences=max_live, max_ids=200, prefill_ids=prefill_ids)
    arrivals = arrivals or [0] * len(streams)
    turns = [0] * len(streams)
    live = {}
    for step in range(5000):
        for i, stream in enumerate(streams):
            if arrivals[i] == step:
                live[i] = Job(stream.request(0), 0.0)
                core.submit(live[i])
        core.step()
        for i, job in list(live.items()):
            if job.result is not None:
                streams[i].accept(job.result)
                if (i, turns[i]) in forget:
                    core.release(streams[i].name)
                turns[i] += 1
                del live[i]
                if turns[i] < streams[i].turns:
                    live[i] = Job(streams[i].request(turns[i]), 0.0)
                    core.submit(live[i])
        if all(t == s.turns for t, s in zip(turns, streams, strict=True)):
            return core
    raise AssertionError("the engine does not make progress")


def finish(core, request):
    """The request's job, once it is answered."""
    job = Job(request, 0.0)
    core.submit(job)
    while job.result is None:
        core.step()
    return job


def streams(count=6, **changes):
    return [Stream(name=f"s{i}", seed=i, **changes) for i in range(count)]


def assert_same_record(a: Stream, b: Stream) -> None:
    assert a.ids == b.ids
    assert [r.tolist() for r in a.routing] == [r.tolist() for r in b.routing]
    assert a.logprobs == b.logprobs


ALONE = streams()
for _stream in ALONE:
    drive([_stream])


@settings(deadline=None, max_examples=8)
@given(
    arrivals=st.lists(st.integers(0, 25), min_size=6, max_size=6),
    max_live=st.integers(1, 6),
    prefill_ids=st.integers(1, 60),
    forget=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=6),
)
def test_results_do_not_depend_on_arrival_order_batch_prefill_budget_or_lost_caches(
    arrivals, max_live, prefill_ids, forget
):
    together = streams()
    drive(together, arrivals=arrivals, max_live=max_live, prefill_ids=prefill_ids, forget=forget)
    for stream, alone in zip(together, ALONE, strict=True):
        assert_same_record(stream, alone)


def test_rows_sum_to_ids_minus_one_and_equal_one_forward_of_the_whole_stream():
    for stream in ALONE:
        routing = np.concatenate(stream.routing)
        assert len(routing) == len(stream.ids) - 1
        with torch.no_grad():
            whole = POLICY.forward_packed(torch.tensor(stream.ids[:-1]), [len(stream.ids) - 1])
        assert routing.tolist() == whole.routing_NLK.tolist()


def test_logprobs_are_the_trainers_under_the_replayed_routing_and_the_sampling_temperature():
    colder = streams(3, temperature=0.5)
    drive(colder)
    for stream in colder + ALONE:
        ids_N = torch.tensor(stream.ids)
        with torch.no_grad():
            forwarded = POLICY.forward_packed(ids_N[:-1], [len(ids_N) - 1], np.concatenate(stream.routing))
            theirs, _ = POLICY.logprobs(forwarded.hidden_NH, ids_N[1:], temperature=stream.temperature)
        sampled = np.array(stream.mask[1:]) == 1
        assert np.array_equal(np.array(stream.logprobs[1:], dtype=np.float32)[sampled], theirs.numpy()[sampled])


def test_entropy_and_version_spans_describe_the_sampled_tokens():
    for stream in ALONE:
        with torch.no_grad():
            forwarded = POLICY.forward_packed(torch.tensor(stream.ids[:-1]), [len(stream.ids) - 1])
            _, entropy = POLICY.logprobs(forwarded.hidden_NH, torch.tensor(stream.ids[1:]), temperature=1.0)
        last = stream.results[-1]
        count = len(last.sampled_ids)
        np.testing.assert_allclose(last.entropy_mean, entropy[-count:].mean(), rtol=1e-3, atol=1e-4)
        (span,) = last.versions
        assert (span.version, span.start, span.end) == (POLICY.digest(), 0, count)


def test_a_greedy_stream_takes_the_most_likely_token_every_time():
    (stream,) = streams(1, temperature=0.0)
    drive([stream])
    with torch.no_grad():
        logits = POLICY.logits(POLICY.forward_packed(torch.tensor(stream.ids[:-1]), [len(stream.ids) - 1]).hidden_NH)
    for position in np.flatnonzero(stream.mask):
        assert stream.ids[position] == int(logits[position - 1].argmax())


def test_a_stream_stops_at_its_longest_length_without_a_stop_id():
    stream = Stream(name="long", seed=1, turns=1, max_new_tokens=500)
    request = stream.request(0)
    core = EngineCore(POLICY, max_live_sequences=1, max_ids=len(request.ids) + 3)
    job = finish(core, replace(request, stop_ids=()))
    assert len(job.result.sampled_ids) == 3
    assert job.result.finish == "length"
    assert len(job.result.routing_RLK) == len(request.ids) + 2


def test_an_abandoned_job_frees_its_slot_and_leaves_a_usable_cache():
    first, second = streams(2)
    core = EngineCore(POLICY, max_live_sequences=1, max_ids=200)
    abandoned = Job(first.request(0), 0.0)
    core.submit(abandoned)
    core.step()
    abandoned.abandoned = True
    again = finish(core, second.request(0))
    assert abandoned.result is None
    assert again.result.sampled_ids == ALONE[1].results[0].sampled_ids
    assert not core.has_work


def test_history_that_changed_is_computed_again_from_where_it_differs():
    stream = Stream(name="s2", seed=2, turns=1)
    core = drive([stream])
    middle = len(stream.ids) // 2
    stream.ids[middle] = (stream.ids[middle] + 1) % 61
    altered = replace(stream.request(1), known_rows=0)
    warm = finish(core, altered)
    cold = finish(EngineCore(POLICY, max_live_sequences=1, max_ids=200), altered)
    assert warm.result.sampled_ids == cold.result.sampled_ids
    assert warm.result.routing_RLK.tolist() == cold.result.routing_RLK.tolist()


@pytest.mark.parametrize("slot_taken_in_between", [False, True])
def test_no_cache_survives_new_weights(slot_taken_in_between):
    other = small_policy(seed=5)
    stream = Stream(name="s3", seed=3, turns=2)
    core = EngineCore(POLICY.copy(), max_live_sequences=1, max_ids=200)
    stream.accept(finish(core, stream.request(0)).result)
    core.load(other.digest(), other.weights())
    request = stream.request(1)
    if slot_taken_in_between:
        core.submit(Job(Stream(name="s4", seed=4).request(0), 0.0))
    warm = finish(core, request)
    cold = finish(EngineCore(other, max_live_sequences=1, max_ids=200), request)
    assert warm.result.sampled_ids == cold.result.sampled_ids
    assert warm.result.routing_RLK.tolist() == cold.result.routing_RLK.tolist()
    assert warm.result.versions[0].version == other.digest()


def test_a_stream_resumed_under_new_weights_has_rows_and_tokens_of_both_each_with_its_version():
    """Stopped after 3 tokens, resumed for 2 (fault R4). A turn's tokens keep their versions up to the trainer, which runs
    each from its own weights."""
    older, newer = small_policy(), small_policy(seed=5)
    core = EngineCore(small_policy(), max_live_sequences=1, max_ids=200)
    values = {"sequence": "s", "temperature": 1.0, "seed": 7, "stop_ids": ()}
    first = finish(core, GenerateRequest(request_id="s/0", ids=(20,), max_new_tokens=3, **values)).result
    core.load(newer.digest(), newer.weights())
    ids = (20, *first.sampled_ids)
    second = finish(core, GenerateRequest(request_id="s/1", ids=ids, max_new_tokens=2, known_rows=3, **values)).result
    ids += second.sampled_ids
    rows = {}
    for policy in (older, newer):
        with torch.no_grad():
            rows[policy] = policy.forward_packed(torch.tensor(ids[:-1]), [5]).routing_NLK.numpy()
    assert np.array_equal(first.routing_RLK, rows[older][:3])
    assert np.array_equal(second.routing_RLK, rows[newer][3:])
    assert not np.array_equal(rows[older][3:], rows[newer][3:]), "the versions must differ in what they choose"
    assert [(s.version, s.start, s.end) for s in first.versions] == [(older.digest(), 0, 3)]
    assert [(s.version, s.start, s.end) for s in second.versions] == [(newer.digest(), 0, 2)]

    turn = Turn(
        context_ids=(20,),
        sampled_ids=ids[1:],
        logprobs=[*first.logprobs, *second.logprobs],
        routing_RLK=np.concatenate([first.routing_RLK, second.routing_RLK]),
        versions=(*first.versions, VersionSpan(version=newer.digest(), start=3, end=5)),
    )
    geometry = geometry_of(older)
    record = stitch_turns([turn], trial="s", index=0, task="", temperature=1.0, geometry=geometry).record
    batch = Batch.of([(record, 1.0)], geometry)
    assert [batch.versions[place] for place in batch.version_T] == [older.digest()] * 3 + [newer.digest()] * 2
    behaviours = {older.digest(): older.weights()}
    zero = np.zeros(5, dtype=np.float32)
    step = actor_step(small_policy(), policy_state(newer), behaviours, batch, zero, TrainConfig(), seed=0, step=0)
    behaviour_T, current_T = step.report.tokens[:, 0], step.report.tokens[:, 1]
    assert np.array_equal(behaviour_T[:3], first.logprobs)
    assert not np.any(behaviour_T[:3] == current_T[:3])
    assert np.array_equal(behaviour_T[3:], current_T[3:])


def test_expert_numbers_above_255_are_recorded_whole():
    """In two bytes, when there are more than 256 experts; else in one."""
    policy = small_policy(num_experts=300, num_hidden_layers=1, num_experts_per_tok=8)
    stream = Stream(name="s", seed=1, turns=1)
    drive([stream], policy=policy)
    (routing,) = stream.routing
    assert routing.dtype == np.uint16
    assert routing.max() > 255
    with torch.no_grad():
        whole = policy.forward_packed(torch.tensor(stream.ids[:-1]), [len(stream.ids) - 1], routing).routing_NLK
    assert routing.tolist() == whole.tolist()
    assert ALONE[0].routing[0].dtype == np.uint8


def rows_run(core, request, monkeypatch):
    """How many rows the forward ran to answer ``request``."""
    counts = []
    forward = core.policy.forward

    def counting(ids_N, *rest):
        counts.append(len(ids_N))
        return forward(ids_N, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(core.policy, "forward", counting)
        job = finish(core, request)
    return sum(counts), job


def test_the_next_turn_runs_new_tokens_only_and_the_longest_idle_cache_goes_first(monkeypatch):
    core = EngineCore(POLICY.copy(), max_live_sequences=2, max_ids=200)
    a, b, c = streams(3)
    for stream in (a, b, c):  # c takes the slot of a, which has been idle longest
        rows, job = rows_run(core, stream.request(0), monkeypatch)
        stream.accept(job.result)
        assert rows == len(stream.ids) - 1
    for stream, cached in ((b, True), (a, False)):
        before = len(stream.ids)
        rows, job = rows_run(core, stream.request(1), monkeypatch)
        stream.accept(job.result)
        assert rows == len(stream.ids) - 1 - (before - 1 if cached else 0)
