"""`t1 run`: a run from its configuration to its report.

The run itself is the supervisor's (``runtime.supervisor``); this is what a person sees of it: checks before it starts, a
display beside it that reads the log, a report after it, and where everything is.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter

from t1actors.cli.checks import bad, config_checks, machine_checks, sandbox_checks
from t1actors.cli.errors import FAILED, INTERRUPTED, CommandFailed
from t1actors.cli.settings import ConfigFile, Sets
from t1actors.config import Config, preset_names, resolve
from t1actors.log.filelog import FileLog
from t1actors.observe.display import DisplayMode, open_display
from t1actors.observe.figures import Figures
from t1actors.observe.fold import fold_frame
from t1actors.observe.follow import follow
from t1actors.observe.happenings import Happening, happenings
from t1actors.observe.quantities import duration, figure, percent
from t1actors.observe.view import RunView
from t1actors.runtime.fingerprint import environment
from t1actors.runtime.supervisor import ActorPlan, RunPlan, RunResult, supervise

RUNS = Path("runs")
ACTORS = {
    "publisher": "t1actors.actors.publisher:Publisher",
    "pool": "t1actors.actors.pool:Pool",
    "sampler": "t1actors.actors.sampler:Sampler",
    "verifier": "t1actors.actors.verifier:Verifier",
    "assembler": "t1actors.actors.assembler:Assembler",
    "critic": "t1actors.actors.critic:Critic",
    "actor": "t1actors.actors.actor:PolicyActor",
}
"""The seven actors. Every process but the sampler's, the critic's and the actor's does without torch."""
ACTOR_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
"""One thread an actor: seven processes share the machine, and the bytes of a step must not depend on threads."""
REFRESH_S = 0.25


def run(
    *,
    preset: Annotated[str, Parameter(help=f"One of {', '.join(preset_names())}.")] = "demo",
    config: ConfigFile = None,
    sets: Sets = (),
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="The run's directory; a new one by default.")
    ] = None,
    display: Annotated[DisplayMode, Parameter(help="How to show what goes on.")] = "auto",
) -> int:
    """Start a run, show it, and write its report.

    Ctrl-C once stops it cleanly; twice at once. Nothing that was acknowledged is lost either way.

    Example: `t1 run --preset smoke --set run.seed=1 --dir runs/mine`
    """
    resolved = resolve(preset=preset, file=config, sets=sets).config
    run_dir = directory or RUNS / f"{preset}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    if (run_dir / "log").exists():
        raise CommandFailed(f"{run_dir} holds a run already; choose another --dir, or leave it out for a new one")
    config_checks(resolved)
    checks = [*machine_checks(run_dir), *trio.run(sandbox_checks)]
    if bad(checks):
        raise CommandFailed("; ".join(check.text for check in bad(checks)) + "; `t1 doctor` shows all checks")
    run_dir.mkdir(parents=True, exist_ok=True)
    _point_latest_at(run_dir)
    result = trio.run(_supervised, run_plan(run_dir, resolved), display)
    return _conclude(run_dir, result, quiet=display in ("quiet", "json"))


def run_plan(run_dir: Path, config: Config) -> RunPlan:
    """The plan of a run on this machine."""
    return RunPlan(
        run_dir=run_dir,
        config=config,
        actors=tuple(ActorPlan(name, factory) for name, factory in _actors(config)),
        environment=environment(),
        env=ACTOR_ENVIRONMENT,
    )


def _actors(config: Config) -> list[tuple[str, str]]:
    replicas = [(f"sampler{n}", ACTORS["sampler"]) for n in range(1, config.rollout.sampler_replicas)]
    return [*ACTORS.items(), *replicas]


async def _supervised(plan: RunPlan, mode: DisplayMode) -> RunResult:
    """The supervisor, and beside it a display that ends when all is shown."""
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_show, plan.run_dir, mode, ended)
        result = await supervise(plan)
        ended.set()
    return result


async def _show(run_dir: Path, mode: DisplayMode, ended: trio.Event) -> None:
    view = RunView()
    display = open_display(mode)
    try:
        async for frames in follow(FileLog(run_dir / "log"), ended=ended.is_set):
            happened: list[tuple[int, Happening]] = []
            for frame in frames:
                events = fold_frame(view, frame)
                happened += [(frame.head.wall_ns, h) for h in happenings(view, events)]
            display.show(happened, view, time.time_ns())
            # A redraw costs more than what it shows: gather for a moment.
            with trio.move_on_after(REFRESH_S):
                await ended.wait()
    finally:
        display.close(view, time.time_ns())


def _point_latest_at(run_dir: Path) -> None:
    """``latest`` beside the run, for the commands that one types after it."""
    link = run_dir.parent / "latest"
    if link.is_symlink() or not link.exists():
        fresh = run_dir.parent / f".latest-{os.getpid()}"
        fresh.symlink_to(run_dir.name)
        fresh.replace(link)


# --- after the run --------------------------------------------------------------------------------------------------


def _conclude(run_dir: Path, result: RunResult, *, quiet: bool) -> int:
    from t1actors.observe.report import write_report

    found = write_report(run_dir)
    if not quiet:
        print("\n".join(_last_lines(run_dir, result, found)))
    if result.reason == "failed":
        for line in result.log_tail:
            print(f"  {line}", file=sys.stderr)
        print(f"t1: the run failed: {result.detail}", file=sys.stderr)
        return FAILED
    return INTERRUPTED if result.reason == "interrupted" else 0


def _last_lines(run_dir: Path, result: RunResult, found: Figures) -> list[str]:
    t1 = _command()
    lines = [f"{result.reason}: {found.steps} training steps, {duration(result.seconds)} wall, "
             f"{duration(result.cpu_seconds)} CPU"]  # fmt: skip
    if found.comparable and found.reward_first5 is not None:
        gain = f" ({found.reward_gain:.2f} times)" if found.reward_gain is not None else ""
        lines.append(
            f"reward   {figure(found.reward_first5)} -> {figure(found.reward_last5)}{gain}, first 5 and last 5 steps"
        )
    elif found.reward_last5 is not None:
        lines.append(
            f"reward   {figure(found.reward_last5)} (too few training steps to compare the first and the last five)"
        )
    if found.heldout_after is not None:
        line = f"held out {percent(found.heldout_before)} -> {percent(found.heldout_after)} of assertions passed"
        lines.append(f"{line}; greedy {percent(found.sft_greedy)} -> {percent(found.trained_greedy)}")
    lines.append(f"report   {run_dir / 'report.md'} (report.json, plots/)")
    if (run_dir / "model" / "config.json").exists():
        lines.append(f"model    {run_dir / 'model'} (a Hugging Face folder)")
    lines.append(f"log      {run_dir / 'log'}")
    if found.by_step:
        trained = [s.step for s in found.by_step if s.staleness is not None]
        step = trained[-1] if trained else found.by_step[-1].step
        lines.append(f"next     {t1} replay {run_dir} --step {step}   re-execute a step and compare every digest")
        lines.append(f"         {t1} log cat {run_dir} --trial s{step}.t0   what one trial did")
    return lines


def _command() -> str:
    """How `t1` was called, as short as it can be typed again."""
    called = Path(sys.argv[0])
    if called.name != "t1":
        return "t1"
    try:
        return str(called.absolute().relative_to(Path.cwd()))
    except ValueError:
        return "t1"
