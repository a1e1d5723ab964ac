"""Train an agent loop that is not ours: its own game, prompts and text encoding; our engine, record and PPO step.

    python examples/train_foreign_agent.py          # about 20 s on one core

The game: the agent stands on one of six squares and sees "1>4": it is on 1 and wants 4. It answers with one letter; `l` and
`r` move it, any other letter wastes the turn. The reward is the share of the way it covered. A model of random weights learns
it: the reward goes from 0 to about 0.7 in eleven steps.
Nothing here knows of actors, events or a log: ids go in, ids with log-probs and routed experts come out, turns become a
record, records a batch, and a step is a pure function of (states, batch, configuration).
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass

import numpy as np
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

from t1actors.config import ActorConfig, CriticConfig, TrainConfig
from t1actors.engine.interface import Engine, GenerateRequest
from t1actors.engine.torch_engine import TorchEngine
from t1actors.models.checkpoint import weights_to_bytes
from t1actors.models.policy import new_policy
from t1actors.models.value import ValueModel
from t1actors.tito.record import TrajectoryRecord
from t1actors.tito.stitch import Turn, stitch_turns
from t1actors.train.actor_step import actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.networks import fresh_state, geometry_of

SQUARES, TURNS, TRIALS, TEMPERATURE = 6, 3, 64, 1.0
ALPHABET = "012345lr>"  # an id is a letter's place
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 11


@dataclass
class Game:
    """Somebody else's environment: text in, text out."""

    at: int
    want: int

    def prompt(self) -> str:
        return f"{self.at}>{self.want}"

    def play(self, answer: str) -> None:
        self.at = min(max(self.at + {"l": -1, "r": 1}.get(answer, 0), 0), SQUARES - 1)


async def episode(engine: Engine, step: int, index: int) -> tuple[TrajectoryRecord, float]:
    """Somebody else's loop. All it owes us is what each call added to the stream of ids."""
    draw = random.Random(1000 * step + index)
    start, want = draw.sample(range(SQUARES), 2)
    game, trial = Game(start, want), f"s{step}.t{index}"
    ids: list[int] = []
    turns: list[Turn] = []
    while game.at != game.want and len(turns) < TURNS:
        context = [ALPHABET.index(letter) for letter in game.prompt()]
        result = await engine.generate(
            GenerateRequest(
                request_id=f"{trial}/{len(turns)}",
                sequence=trial,  # whose cache the next turn goes on with
                ids=(*ids, *context),
                max_new_tokens=1,
                temperature=TEMPERATURE,
                seed=draw.getrandbits(63),
                stop_ids=(),
                known_rows=max(len(ids) - 1, 0),  # routing rows that we have already
            )
        )
        turns.append(
            Turn(
                context_ids=context,
                sampled_ids=result.sampled_ids,
                logprobs=result.logprobs,
                routing_RLK=result.routing_RLK,
                versions=result.versions,
            )
        )
        ids += [*context, *result.sampled_ids]
        game.play(ALPHABET[result.sampled_ids[0]])
    await engine.release(trial)
    reward = (abs(want - start) - abs(want - game.at)) / min(abs(want - start), TURNS)
    stitched = stitch_turns(turns, trial=trial, index=index, task="walk", temperature=TEMPERATURE, geometry=GEOMETRY)
    return stitched.record, reward


MODEL = Qwen3MoeConfig(
    vocab_size=len(ALPHABET), hidden_size=32, intermediate_size=32, moe_intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
    tie_word_embeddings=False, max_position_embeddings=128, initializer_range=0.1,
)  # fmt: skip
CONFIG = TrainConfig(
    actor=ActorConfig(learning_rate=1e-2, weight_decay=0.0, minibatches=4, whiten_advantages=True),
    critic=CriticConfig(learning_rate=1e-2, weight_decay=0.0, epochs=2, minibatches=4, value_clip=0.0),
)
POLICY = new_policy(MODEL, seed=0)
GEOMETRY = geometry_of(POLICY)


async def main() -> None:
    actor_net, critic_net = POLICY.copy(), ValueModel.from_policy(POLICY)  # scratch space of the trainer
    actor, critic = fresh_state(actor_net), fresh_state(critic_net)
    engine = TorchEngine(POLICY, max_live_sequences=TRIALS, max_ids=96)
    async with engine.running():
        print("step  reward    gap      ratio max   kl       entropy  explained variance")
        for step in range(STEPS):
            found = await asyncio.gather(*(episode(engine, step, index) for index in range(TRIALS)))
            batch = Batch.of(found, GEOMETRY)
            values = estimate_values(critic_net, critic, batch, CONFIG)  # before the critic's own update
            critic = critic_step(critic_net, critic, batch, values.values_T, CONFIG, seed=0, step=step).state
            # Every token was sampled by the weights being trained, so no other version's weights are needed.
            trained = actor_step(actor_net, actor, {}, batch, values.values_T, CONFIG, seed=0, step=step)
            actor, report = trained.state, trained.report
            await engine.load(report.weights_after, weights_to_bytes(trained.weights))
            print(
                f"{step:4}  {np.mean([reward for _, reward in found]):+.3f}  {report.gap.total_mean:.2e}  "
                f"{report.ratio_max:8.3f}  {report.kl:.2e}  {report.entropy:.3f}    {values.explained_variance:+.3f}",
                flush=True,
            )


if __name__ == "__main__":
    asyncio.run(main())
