"""Is it learning? The demonstration's preset over three seeds, and on each a control from which nothing can be learnt.

The gate of the demonstration is that the mean reward of the last five steps is 1.25 times that of the first five, and that
the held-out share at temperature 1 rises by .10. A rising curve can be had without learning (sharpening, drift of the tasks,
an error in the accounting), so the same gate is put to a control that differs in one thing: each step's rewards are given
to other trials of the batch, by a seeded derangement. The control must fail on
every seed.

Held out: 40 tasks a level that no step trains on, the same for all seeds; shares are P / n. Errors are over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from bench.learning.arms import Arm, counted, permuted
from bench.learning.learner import Learner, Outcome
from bench.learning.part import Answer, Context, Gate, Part, Picture
from bench.learning.pictures import INK
from bench.learning.stage import Stage, staged, with_seed
from bench.learning.statistics import Estimate, mean, paired
from bench.tables import Cell, Table
from t1actors.actors.schedule import Schedule
from t1actors.config import Config, resolve

SEEDS = (0, 1, 2)
ENDS = 5
LEAST_RATIO = 1.25
LEAST_RISE = 0.10
CONTROL = "control"


@dataclass(frozen=True)
class Run:
    """A whole schedule of one seed. Held-out shares are a task's, in the order of the pool."""

    name: str
    trained: tuple[Outcome, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    greedy_before: tuple[float, ...]
    greedy_after: tuple[float, ...]
    cpu_s: float
    scale: float

    @property
    def rewards(self) -> list[float]:
        return [outcome.reward(self.scale) for outcome in self.trained]

    @property
    def ends(self) -> tuple[float, float]:
        """Mean reward of the first and the last steps."""
        count = min(ENDS, max(1, len(self.trained) // 2))
        return mean(self.rewards[:count]), mean(self.rewards[-count:])

    @property
    def ratio(self) -> float:
        first, last = self.ends
        return last / max(first, 1e-9)

    @property
    def rise(self) -> Estimate:
        """Held-out share after minus before, task by task."""
        return paired(self.after, self.before)

    @property
    def passes(self) -> bool:
        return self.ratio >= LEAST_RATIO and self.rise.mean >= LEAST_RISE


def preset(quick: bool) -> Config:
    """The demonstration as it is shipped; oversampling has no meaning in one process that plays what it is told."""
    tiny = (
        "tasks.heldout_per_level=1",
        "rollout.batch_size=6",
        "schedule.recalibrate_steps=1",
        "schedule.train_steps=4",
    )
    return resolve(preset="demo", sets=tiny if quick else ()).config


async def play(stage: Stage, name: str, config: Config, arm: Arm) -> Run:
    """The whole schedule of ``config``."""
    schedule = Schedule(config, Path("."))
    learner = Learner(stage, config, arm)
    outcomes = [await learner.step(schedule.planned(step)) for step in range(len(schedule))]
    before, greedy_before, after, greedy_after = (
        tuple(trial.share for trial in outcome.trials) for outcome in outcomes if outcome.purpose == "evaluate"
    )
    trained = tuple(outcome for outcome in outcomes if outcome.purpose == "train")
    cpu_s = sum(outcome.took.total_s for outcome in outcomes)
    run = Run(name, trained, before, after, greedy_before, greedy_after, cpu_s, config.verify.reward_scale)
    stage.context.say(
        f"{name}: x {run.ratio:.2f}, held-out {mean(before):.3f} -> {mean(after):.3f}, "
        f"greedy {mean(greedy_before):.3f} -> {mean(greedy_after):.3f}, {cpu_s:.0f} CPU s"
    )
    return run


def curve(run: Run, width: int = 4) -> str:
    """Shares of a run's steps, means of ``width``."""
    shares = [outcome.share for outcome in run.trained]
    return " ".join(f"{mean(shares[i : i + width]):.2f}".lstrip("0") for i in range(0, len(shares), width))


def results(runs: Sequence[Run], controls: Sequence[Run]) -> list[Table]:
    def row(run: Run) -> tuple[Cell, ...]:
        first, last = run.ends
        return (run.name, first, last, run.ratio, run.rise, "yes" if run.passes else "no", run.cpu_s)

    def over_seeds(runs: Sequence[Run]) -> tuple[Cell, ...]:
        return (
            "mean ± error over seeds",
            Estimate.of([run.ends[0] for run in runs]),
            Estimate.of([run.ends[1] for run in runs]),
            Estimate.of([run.ratio for run in runs]),
            Estimate.of([run.rise.mean for run in runs]),
            None,
            Estimate.of([run.cpu_s for run in runs]).mean,
        )

    gate = Table(
        "The demonstration's gate",
        ("run", "reward, first 5", "reward, last 5", "ratio", "held-out T = 1, rise", "passes the gate", "CPU s"),
        tuple(line for part in (runs, controls) for line in (*(row(run) for run in part), over_seeds(part))),
        f"Reward is P / S. A seed's rise is paired by task over {len(runs[0].before)} held-out tasks, with the error over "
        "tasks. CPU s: this process, evaluations in; sandboxes apart.",
    )

    def heldout(run: Run) -> tuple[Cell, ...]:
        parts = (run.before, run.after, run.greedy_before, run.greedy_after)
        return (run.name, *(Estimate.of(part) for part in parts), paired(run.after, run.greedy_before), curve(run))

    def together(runs: Sequence[Run]) -> tuple[Cell, ...]:
        parts = ("before", "after", "greedy_before", "greedy_after")
        return (
            "mean ± error over seeds",
            *(Estimate.of([mean(getattr(run, part)) for run in runs]) for part in parts),
            Estimate.of([mean(run.after) - mean(run.greedy_before) for run in runs]),
            "",
        )

    shares = Table(
        "Held-out share of assertions, P / n",
        (
            "run",
            "T = 1 before",
            "T = 1 after",
            "greedy before",
            "greedy after",
            "T = 1 after - greedy before",
            "share of training steps, means of 4",
        ),
        tuple(line for part in (runs, controls) for line in (*(heldout(run) for run in part), together(part))),
        "*Greedy before* is the warm start without the noise of sampling: what sharpening alone might reach. The "
        "greedy warm start is the same for all seeds.",
    )
    return [gate, shares]


def gates(runs: Sequence[Run], controls: Sequence[Run]) -> list[Gate]:
    claim = f"last {ENDS} steps >= {LEAST_RATIO} x the first {ENDS}, and held-out at T = 1 up by {LEAST_RISE:.2f}"

    def observed(run: Run) -> str:
        return f"x {run.ratio:.2f}, {run.rise.mean:+.3f}"

    beyond = Estimate.of([mean(run.after) - mean(run.greedy_before) for run in runs])
    return [
        *(Gate(f"{run.name}: {claim}", observed(run), run.passes) for run in runs),
        *(Gate(f"{control.name}: that gate fails", observed(control), not control.passes) for control in controls),
        Gate(
            "held-out at T = 1 after training is above the greedy warm start, mean over seeds",
            f"{beyond.mean:+.3f}",
            beyond.mean > 0,
        ),
    ]


def picture(runs: Sequence[Run], controls: Sequence[Run]) -> Picture:
    def draw(axes: Axes) -> None:
        for part, ink, name in ((runs, INK[0], "seeds 0, 1, 2"), (controls, INK[1], "the same, rewards permuted")):
            for number, run in enumerate(part):
                shares = [outcome.share for outcome in run.trained]
                axes.plot(shares, color=ink, alpha=0.75, linewidth=1.2, label=name if number == 0 else None)
        greedy = mean([mean(run.greedy_before) for run in runs])
        axes.axhline(greedy, color=INK[2], linestyle="--", linewidth=1, label="warm start, greedy, held out")
        axes.set_xlabel("training step")
        axes.set_ylabel("share of assertions passed")
        axes.set_ylim(0, 1)
        axes.legend(fontsize=8)

    return Picture("learning-seeds", "Three seeds, and rewards given to other trials", draw)


async def run(context: Context) -> Answer:
    config = preset(context.quick)
    pay = counted(config.verify.reward_scale)
    seeds = SEEDS[:1] if context.quick else SEEDS
    async with staged(context, config) as stage:
        runs = [
            await play(stage, f"seed {seed}", with_seed(config, seed), Arm("preset", pay, "critic")) for seed in seeds
        ]
        controls = [
            await play(
                stage,
                f"permuted rewards, seed {seed}",
                with_seed(config, seed),
                Arm(CONTROL, permuted(pay, seed), "critic"),
            )
            for seed in seeds
        ]
    return Answer(tuple(results(runs, controls)), tuple(gates(runs, controls)), (picture(runs, controls),))


PART = Part(
    name="seeds",
    question="Does the demonstration learn on every seed, and does a run whose rewards are permuted across trials not?",
    cpu_seconds=800,
    run=run,
)
