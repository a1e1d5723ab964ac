"""The engine's scheduling, without concurrency."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.engine.core import EngineCore, Job
from tests.engine.streams import Stream
from tests.models.small import small_policy

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
