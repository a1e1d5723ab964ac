"""What should a trial be paid? T1's count P / S against the ratio P / n and the binary b, a few steps on three seeds.

All three with the batch's mean as baseline and nothing else different (``bench.learning.arms``). They differ in scale too:
Adam's update does not depend on the gradient's scale, the clip by its norm does; the note says how large the norms were.
What is asked afterwards does not depend on the pay: the share of assertions, and how many tasks are solved completely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.learning.arms import Arm, binary, ratio
from bench.learning.comparison import ArmRun, on_every_seed, short, table, untrained
from bench.learning.critic import batch_mean
from bench.learning.part import Answer, Context, Part
from bench.learning.stage import staged
from bench.learning.statistics import mean


def norm(runs: Sequence[ArmRun]) -> float:
    """Mean gradient norm before clipping."""
    return mean([outcome.report.gradient_norm for run in runs for outcome in run.trained if outcome.report is not None])


async def run(context: Context) -> Answer:
    config, quick = short(context.quick), context.quick
    async with staged(context, config) as stage:
        before = await untrained(stage, config, quick)
        counted_runs = await on_every_seed(stage, config, batch_mean(config), quick)
        ratio_runs = await on_every_seed(stage, config, Arm("ratio P / n", ratio, "batch mean"), quick)
        binary_runs = await on_every_seed(stage, config, Arm("binary b", binary, "batch mean"), quick)
    scale = config.verify.reward_scale
    named = [replace(run, arm=f"count P / {scale:.0f}") for run in counted_runs]
    arms = (named, ratio_runs, binary_runs)
    norms = ", ".join(f"{runs[0].arm} {norm(runs):.2f}" for runs in arms)
    found = table(
        f"Rewards after {config.schedule.train_steps} steps of {config.rollout.batch_size} episodes",
        arms,
        before,
        f"Levels {', '.join(map(str, config.tasks.levels))}, {len(named[0].heldout)} held-out tasks at temperature 1, "
        f"{len(named)} seeds. Differences are from the count, paired by task and trial seed. Gradient norms before the "
        f"clip at {config.train.actor.gradient_clip}: {norms}.",
    )
    return Answer((found,))


PART = Part(
    name="rewards",
    question="Does the count P / S train better than the ratio P / n or a binary reward?",
    cpu_seconds=150,
    run=run,
)
