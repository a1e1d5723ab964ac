"""Training: tokens a second of a critic's and an actor's step beside a plain Hugging Face loop, on the same trajectories.

    python -m bench.train [--quick] [--json FILE]

Both sides: one thread, float32, AdamW, the same minibatches, the same number of optimizer updates. What this package's steps
do besides, and the plain loop does not: replay the routing, take log-probs of the behaviour version from its weights, digest
losses, gradients, weights and moments, and give a state from which the next step's bits follow.

A token counts once an epoch: ids of the batch x epochs / seconds of the whole step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bench import plain
from bench.measure import Sample, cpu, interleaved, rate, ratios, wall
from bench.tables import Table, conclude, parser
from bench.workload import FOLDER, batch
from t1actors.config import Config, TrainConfig, resolve
from t1actors.models.pretrained import load_policy
from t1actors.train.actor_step import actor_step, advantages
from t1actors.train.batch import Batch, minibatches
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.networks import (
    critic_for,
    initial_critic_state,
    initial_policy_state,
    policy_for,
    version_of,
    working_weights,
)
from t1actors.train.returns import batch_credit


@dataclass(frozen=True)
class Sizes:
    preset: str = "demo"
    trajectories: int = 96
    rounds: int = 4


QUICK = Sizes(preset="smoke", trajectories=6, rounds=1)
COLUMNS = ("step", "tokens", "updates", "seconds", "CPU seconds", "tok/s", "plain / this", "of CPU seconds")


def cut(data: Batch, config: TrainConfig, part: str) -> list[list[tuple[int, ...]]]:
    """The minibatches of every epoch, as a step takes them."""
    given = config.actor if part == "actor" else config.critic
    return [
        minibatches(data, given.minibatches, seed=0, step=0, epoch=epoch, part=part) for epoch in range(given.epochs)
    ]


def actor_samples(config: Config, data: Batch, values_T: np.ndarray, rounds: int) -> dict[str, list[Sample]]:
    """The actor's step at staleness 0 and 1, and the plain loop without and with a pass for old log-probs."""
    model, train = config.model, config.train
    fresh = initial_policy_state(model)
    network = policy_for(fresh, model)
    behaviour = {version_of(network, fresh): working_weights(network, fresh.weights)}
    # At staleness 1 the weights being trained are one update ahead of those that sampled.
    ahead = actor_step(network, fresh, behaviour, data, values_T, train, seed=0, step=0).state
    theirs = plain.load()
    optimizer = plain.optimizer(list(theirs.parameters()), train.actor)
    padded = plain.padded(data, advantages(data, values_T, train))
    (parts,) = cut(data, train, "actor")
    return interleaved(
        {
            "plain": lambda: plain.policy_step(theirs, optimizer, padded, parts, train.actor, old_pass=False),
            "plain, old pass": lambda: plain.policy_step(theirs, optimizer, padded, parts, train.actor, old_pass=True),
            "staleness 0": lambda: actor_step(network, fresh, behaviour, data, values_T, train, seed=0, step=0),
            "staleness 1": lambda: actor_step(network, ahead, behaviour, data, values_T, train, seed=0, step=1),
        },
        rounds=rounds,
    )


def critic_samples(config: Config, data: Batch, rounds: int) -> tuple[np.ndarray, dict[str, list[Sample]]]:
    """(V_old, the critic's values and update beside the plain loop's)."""
    model, train = config.model, config.train
    state = initial_critic_state(model)
    network = critic_for(state, model)
    values_T = estimate_values(network, state, data, train).values_T
    _, returns_T = batch_credit(data.chunk_rewards, data.chunk_sampled, values_T, gamma=train.gamma, lam=train.lam)
    theirs = plain.PlainCritic(plain.load().model)
    optimizer = plain.optimizer(list(theirs.parameters()), train.critic)
    padded = plain.padded(data, returns_T)
    epochs = cut(data, train, "critic")

    def ours() -> None:
        old_T = estimate_values(network, state, data, train).values_T
        critic_step(network, state, data, old_T, train, seed=0, step=0)

    samples = interleaved(
        {"plain": lambda: plain.critic_step(theirs, optimizer, padded, epochs, train.critic), "this": ours},
        rounds=rounds,
    )
    return values_T, samples


def row(name: str, tokens: int, updates: int, found: list[Sample], against: list[Sample] | None) -> tuple[object, ...]:
    compared = (None, None) if against is None else (ratios(against, found), ratios(against, found, of_cpu=True))
    return (name, tokens, updates, wall(found), cpu(found), rate(tokens, found), *compared)


def run(sizes: Sizes) -> list[Table]:
    torch.set_num_threads(1)
    config = resolve(preset=sizes.preset).config
    policy = load_policy(FOLDER)
    data = batch(policy, policy.digest(), sizes.trajectories)
    ids = sum(trial.ids for trial in data.trials)
    values_T, critic = critic_samples(config, data, sizes.rounds)
    actor = actor_samples(config, data, values_T, sizes.rounds)
    actor_part, critic_part = config.train.actor, config.train.critic
    a_tokens, a_updates = ids * actor_part.epochs, actor_part.epochs * actor_part.minibatches
    c_tokens, c_updates = ids * critic_part.epochs, critic_part.epochs * critic_part.minibatches
    rows = (
        row("actor, plain loop", a_tokens, a_updates, actor["plain"], None),
        row("actor, plain loop with a pass for old log-probs", a_tokens, a_updates, actor["plain, old pass"], None),
        row("actor_step at staleness 0", a_tokens, a_updates, actor["staleness 0"], actor["plain, old pass"]),
        row("actor_step at staleness 1", a_tokens, a_updates, actor["staleness 1"], actor["plain, old pass"]),
        row("critic, plain loop with values first", c_tokens, c_updates, critic["plain"], None),
        row("estimate_values and critic_step", c_tokens, c_updates, critic["this"], critic["plain"]),
    )
    lengths = [trial.ids for trial in data.trials]
    note = (
        f"{len(lengths)} shipped demonstrations as trajectories, {ids:,} ids (longest {max(lengths)}), "
        f"preset {sizes.preset}. "
        "*plain / this*: seconds of the plain loop (the actor's: with its pass for old log-probs) over seconds of this "
        "step, round by round; above 1 this step is faster."
    )
    return [Table("Training", COLUMNS, rows, note)]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    conclude("train", arguments, lambda: run(QUICK if arguments.quick else Sizes()))


if __name__ == "__main__":
    main()
