"""What is compared does the same work: as many tokens, the same losses, the same events."""

import numpy as np
import pytest
import torch
import trio

from bench import plain, workload
from bench.engine import core_turn, engine_play
from bench.log import drain, fill
from bench.metered import MeteredLog
from t1actors.config import resolve
from t1actors.engine.core import EngineCore
from t1actors.engine.torch_engine import TorchEngine
from t1actors.log.memory import MemoryLog
from t1actors.models.pretrained import load_policy
from t1actors.train.actor_step import advantages
from t1actors.train.batch import minibatches


@pytest.fixture(scope="module")
def model():
    return plain.load()


@pytest.fixture(scope="module")
def policy():
    return load_policy(workload.FOLDER)


@pytest.fixture(scope="module")
def batch(policy):
    return workload.batch(policy, policy.digest(), 4)


def test_episodes_have_the_recorded_turns(policy):
    episodes = workload.episodes(5)
    shown = workload.demonstrations(5)
    assert [len(e.turns) for e in episodes] == [len(d.commands) for d in shown]
    assert all(turn.sampled > 1 and turn.context for e in episodes for turn in e.turns)


def test_trajectories_are_the_episodes_with_the_policys_own_log_probs(batch, policy):
    episodes = workload.episodes(4)
    assert [t.sampled for t in batch.trials] == [e.sampled for e in episodes]
    assert batch.versions == (policy.digest(),)
    assert (batch.sampler_logprobs_T < 0).all()


def test_generate_gives_exactly_the_tokens_that_are_counted(model):
    streams = [turn.context for e in workload.episodes(3) for turn in e.turns[:1]]
    assert [len(ids) for ids in plain.generate(model, streams, 60)] == [60, 60, 60]


def test_padding_on_the_left_changes_no_logits(model):
    short, long = (e.turns[0].context for e in workload.episodes(2))
    ids_BT, mask_BT = plain.left_padded([short, (*long, *long)])
    with torch.inference_mode():
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        padded = model(input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT).logits[0, -1]
        alone = model(input_ids=torch.tensor([short])).logits[0, -1]
    torch.testing.assert_close(padded, alone, atol=1e-4, rtol=1e-4)


def test_the_engine_plays_every_episode_to_its_end():
    episodes = workload.episodes(3)
    asked = []

    class Recording(TorchEngine):
        async def generate(self, request):
            asked.append((request.sequence, request.max_new_tokens))
            return await super().generate(request)

    async def main():
        engine = Recording(workload.FOLDER, max_live_sequences=2)
        async with engine.running():
            await engine_play(engine, episodes, 2)

    trio.run(main)
    for number, episode in enumerate(episodes):
        assert [n for name, n in asked if name == f"episode{number}"] == [turn.sampled for turn in episode.turns]


def test_the_engines_core_runs_until_nothing_is_left(policy):
    core = EngineCore(policy.copy(), max_live_sequences=2, max_ids=640)
    core_turn(core, [[1, 2, 3], [4, 5]], 3)
    assert not core.has_work


def test_the_plain_loop_sees_the_log_probs_that_were_recorded(model, batch):
    padded = plain.padded(batch, np.zeros(batch.sampled))
    with torch.no_grad():
        logprobs_BT = plain.policy_logprobs(model, padded)
    mask_BT = padded.mask_BT[:, 1:]
    torch.testing.assert_close(logprobs_BT[mask_BT], padded.old_BT[:, 1:][mask_BT], atol=1e-4, rtol=1e-4)
    assert int(mask_BT.sum()) == batch.sampled


def test_the_plain_loop_makes_as_many_updates_as_a_step(batch):
    train = resolve(preset="smoke").config.train
    model = plain.load()
    padded = plain.padded(batch, advantages(batch, np.zeros(batch.sampled, np.float32), train))
    optimizer = plain.optimizer(list(model.parameters()), train.actor)
    parts = minibatches(batch, train.actor.minibatches, seed=0, step=0, epoch=0, part="actor")
    before = model.lm_head.weight.clone()
    plain.policy_step(model, optimizer, padded, parts, train.actor, old_pass=True)
    updates = {int(state["step"]) for state in optimizer.state.values()}
    assert updates == {len(parts)} == {train.actor.minibatches}
    assert not torch.equal(before, model.lm_head.weight)


def test_targets_lie_at_the_sampled_tokens_in_their_order(batch):
    target_T = np.arange(batch.sampled, dtype=np.float32)
    padded = plain.padded(batch, target_T)
    assert padded.target_BT[padded.mask_BT].tolist() == target_T.tolist()
    part = padded.at([2, 0])
    assert part.ids_BT.shape[1] == max(batch.trials[2].ids, batch.trials[0].ids)
    assert part.target_BT[part.mask_BT].tolist() == target_T[batch.tokens_of([2, 0])].tolist()


def test_the_metered_log_counts_what_passes_through_it():
    log = MeteredLog(MemoryLog())
    writer = log.open_writer("long")
    fill(writer, 10, 4)
    writer.close()
    assert (log.appends.calls, log.appends.events) == (3, 10)
    assert drain(log, parse=True) == 10
    assert log.reads.calls == 2
