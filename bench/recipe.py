"""The recipe of a preset, tried in one process without a log: is this configuration one that learns?

    python -m bench.recipe --preset demo --set train.actor.learning_rate=3e-4

Engine, sandboxes, harness, records, batches and both training steps are the real ones, with the loop's staleness (0 for the
first step, then 1) and its seeds (``bench.learning.rollout`` says what is left out). Prints one line a step and the figures
that the demonstration's gate looks at; CPU seconds, because a loaded machine says nothing by the clock. Several seeds, their
errors and the control beside them: ``python -m bench.learning seeds``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio

from bench.learning.arms import Arm, counted, permuted
from bench.learning.learner import Learner, Outcome
from bench.learning.part import Context, process_seconds
from bench.learning.rollout import Trial
from bench.learning.stage import staged, with_seed
from bench.learning.statistics import mean
from t1actors.actors.schedule import Schedule
from t1actors.config import Config, resolve
from t1actors.sandbox.backend import NamespaceBackend


def by_level(trials: Sequence[Trial]) -> str:
    levels = sorted({t.level for t in trials})
    return " ".join(f"L{level} {mean([t.share for t in trials if t.level == level]):.2f}" for level in levels)


def line(step: int, outcome: Outcome) -> str:
    """A step in one line."""
    trials, took = outcome.trials, outcome.took
    parts = [f"{step:3d} {outcome.purpose:11s} share {outcome.share:.3f} {by_level(trials)}"]
    parts.append(f"turns {mean([t.turns for t in trials]):.1f}")
    parts.append(
        f"cut {mean([t.end in ('turn_truncated', 'token_limit') for t in trials]):.2f} cpu {took.sampling_s:.1f}"
    )
    if outcome.explained_variance is not None:
        parts.append(f"| ev {outcome.explained_variance:+.2f} cpu {took.critic_s:.1f}")
    if (report := outcome.report) is not None:
        parts.append(f"| kl {report.kl:.1e} clip {report.clip_share:.3f} entropy {report.entropy:.2f}")
        parts.append(f"norm {report.gradient_norm:.2f} gap {report.gap.engine_max:.0e} cpu {took.actor_s:.1f}")
    return " ".join(parts)


async def experiment(config: Config, context: Context, *, shuffle_rewards: bool = False) -> dict[str, object]:
    """One run of the schedule. ``shuffle_rewards`` is the control: rewards go to other trials, nothing can be learnt."""
    schedule = Schedule(config, Path("."))
    scale = config.verify.reward_scale
    pay = counted(scale)
    arm = Arm("preset", permuted(pay, config.run.seed) if shuffle_rewards else pay, "critic")
    heldout: dict[str, float] = {}
    trained: list[Outcome] = []
    began_s = process_seconds()
    async with staged(context, config) as stage:
        learner = Learner(stage, config, arm)
        for step in range(len(schedule)):
            outcome = await learner.step(schedule.planned(step))
            context.say(line(step, outcome))
            if outcome.purpose == "evaluate":
                greedy = outcome.planned.temperature == 0
                heldout[("after" if trained else "before") + ("_greedy" if greedy else "")] = outcome.share
            elif outcome.purpose == "train":
                trained.append(outcome)
    rewards = [outcome.reward(scale) for outcome in trained]
    ends = min(5, max(1, len(rewards) // 2))
    first, last = mean(rewards[:ends]), mean(rewards[-ends:])
    return {
        "reward_first5": round(first, 4),
        "reward_last5": round(last, 4),
        "ratio": round(last / max(first, 1e-9), 3),
        "curve": [round(mean([o.share for o in trained[i : i + 4]]), 2) for i in range(0, len(trained), 4)],
        "heldout": {k: round(v, 3) for k, v in heldout.items()},
        "cpu_seconds": round(process_seconds() - began_s, 1),
    }


def parse(arguments: Sequence[str] | None = None) -> tuple[Config, bool]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shuffle-rewards", action="store_true")
    given = parser.parse_args(arguments)
    config = resolve(preset=given.preset, sets=given.set).config
    return with_seed(config, given.seed), given.shuffle_rewards


async def main() -> None:
    config, shuffle = parse()
    with tempfile.TemporaryDirectory() as folder:
        backend = NamespaceBackend(Path(folder), name="recipe")
        async with backend.running():
            context = Context(backend, say=lambda text: print(text, flush=True))
            print(json.dumps(await experiment(config, context, shuffle_rewards=shuffle)))


if __name__ == "__main__":
    anyio.run(main, backend="trio")
