"""`t1 run`: a run from its configuration to its report, and on from where it was stopped.

The run itself is the supervisor's (``runtime.supervisor``); this is what a person sees of it: checks before it starts, a
display beside it that reads the log, a report after it, and where everything is.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter

from t1actors.actors.replicas import replica_names
from t1actors.cli.checks import Check, bad, machine_checks, sandbox_checks
from t1actors.cli.checks_docker import daemon_checks
from t1actors.cli.checks_machine import memory_left_bytes
from t1actors.cli.ending import conclude, resume_command
from t1actors.cli.errors import INTERRUPTED, CommandFailed, WrongUsage, explain
from t1actors.cli.preflight import preflight, with_full_paths
from t1actors.cli.resume import find_stopped_run
from t1actors.cli.settings import ConfigFile, Sets
from t1actors.cli.suspension import stop_here, stops_with_ctrl_z
from t1actors.config import Config, SandboxConfig, preset_names, resolve
from t1actors.log.filelog import FileLog
from t1actors.observe.display import Display, DisplayMode, open_display
from t1actors.observe.fold import fold_frame
from t1actors.observe.follow import follow
from t1actors.observe.happenings import Happening, happenings
from t1actors.observe.view import RunView
from t1actors.runtime.fingerprint import environment
from t1actors.runtime.numerics import KernelsLacking, Numerics, Search, first_start, of_the_run
from t1actors.runtime.plan import ActorPlan, RunPlan
from t1actors.runtime.supervisor import RunResult, supervise
from t1actors.tasks.choice import write_choice

RUNS = Path("runs")
DEFAULT_PRESET = "demo"
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
AGENT_SAMPLER = "t1actors.actors.sampler_agents:AgentSampler"
"""The sampler of ``rollout.harness = "command"``."""
ACTOR_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
"""One thread an actor: seven processes share the machine, and the bytes of a step must not depend on threads."""
REFRESH_S = 0.25


def run(
    *,
    preset: Annotated[
        str | None, Parameter(help=f"One of {', '.join(preset_names())}; {DEFAULT_PRESET} by default.")
    ] = None,
    config: ConfigFile = None,
    sets: Sets = (),
    tasks: Annotated[Path | None, Parameter(help="A directory of tasks; short for --set tasks.source=DIR.")] = None,
    model: Annotated[Path | None, Parameter(help="A model folder; short for --set model.policy=FOLDER.")] = None,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="The run's directory; a new one by default.")
    ] = None,
    resume: Annotated[Path | None, Parameter(help="Go on with the stopped run in this directory.")] = None,
    display: Annotated[DisplayMode, Parameter(help="How to show what goes on.")] = "auto",
) -> int:
    """Start a run, or go on with a stopped one, show it, and write its report.

    Ctrl-C once stops it after the phase it is in; twice at once; three times kills it. Nothing that was recorded is lost
    in any case, and `--resume` goes on from there with the run's own configuration.

    Example: `t1 run --preset smoke --set run.seed=1 --dir runs/mine`

    Example: `t1 run --resume runs/mine`

    Example: `t1 run --preset smoke --tasks my-tasks --model my-model`
    """
    if resume is not None:
        given = {"--preset": preset, "--config": config, "--set": sets, "--tasks": tasks, "--model": model}
        _only_resume({**given, "--dir": directory}, resume)
        return _go_on(resume, display)
    shortcuts = _shortcuts(sets, {"tasks.source": ("--tasks", tasks), "model.policy": ("--model", model)})
    preset = preset or DEFAULT_PRESET
    resolved = with_full_paths(resolve(preset=preset, file=config, sets=[*sets, *shortcuts]).config)
    run_dir = directory or RUNS / f"{preset}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    if (run_dir / "log").exists():
        raise CommandFailed(
            f"{run_dir} holds a run already; choose another --dir, or leave it out for a new one; to go on with it: "
            f"{resume_command(run_dir)}"
        )
    with _look_for_kernels(resolved.model.kernels) as search:  # beside the checks
        found = preflight(resolved, memory_left_bytes())
        _check_machine(run_dir, resolved.sandbox)
        numerics = search.found()
    run_dir = _make_directory(run_dir, given=directory is not None)
    if found.choice is not None:
        write_choice(run_dir, found.choice)
        (run_dir / "tasks.md").write_text(found.tasks_md)
    _say(found.lines, display)
    return _show_and_conclude(run_plan(run_dir, resolved, numerics), display)


def _go_on(given: Path, display: DisplayMode) -> int:
    stopped = find_stopped_run(given)
    with _look_for_kernels(stopped.kernels or stopped.config.model.kernels) as search:
        _check_machine(stopped.run_dir, stopped.config.sandbox)
        try:
            numerics = search.found()
        except KernelsLacking as error:
            raise stopped.lacking(error) from error
    _say([*stopped.lines, *stopped.other_bits(numerics.facts)], display)
    return _show_and_conclude(run_plan(stopped.run_dir, stopped.config, numerics), display, stopped.sessions)


def run_plan(run_dir: Path, config: Config, numerics: Numerics | None = None) -> RunPlan:
    """The plan of a run on this machine, begun or not. ``numerics``: what was found already of its kernels. Raises
    ``KernelsLacking``, ``NumericsUnknown``."""
    if numerics is None:
        started = first_start(FileLog(run_dir / "log"))
        with _look_for_kernels(of_the_run(config, started).model.kernels) as search:
            numerics = search.found()
    return RunPlan(
        run_dir=run_dir,
        config=config,
        actors=tuple(ActorPlan(name, factory) for name, factory in _actors(config)),
        environment=environment(),
        numerics=numerics,
        env=ACTOR_ENVIRONMENT,
        replicas=frozenset(replica_names(config.rollout.sampler_replicas)),
    )


def _look_for_kernels(wanted: str) -> Search:
    return Search(wanted, env=ACTOR_ENVIRONMENT)


def _actors(config: Config) -> list[tuple[str, str]]:
    actors = dict(ACTORS)
    if config.rollout.harness == "command":
        actors["sampler"] = AGENT_SAMPLER
    replicas = [(f"sampler{n}", actors["sampler"]) for n in range(1, config.rollout.sampler_replicas)]
    return [*actors.items(), *replicas]


# --- before it ----------------------------------------------------------------------------------------------------------


def _only_resume(others: dict[str, object], run_dir: Path) -> None:
    given = [name for name, value in others.items() if value]
    if given:
        raise WrongUsage(
            f"--resume {run_dir} with {', '.join(given)}: a resumed run keeps its own configuration, that of "
            f"{run_dir / 'config.toml'}; leave {'it' if len(given) == 1 else 'them'} out, or begin a new run"
        )


def _shortcuts(sets: Sequence[str], shortcuts: dict[str, tuple[str, Path | None]]) -> list[str]:
    """``key=value`` for each shortcut that was given."""
    found: list[str] = []
    for key, (option, value) in shortcuts.items():
        if value is None:
            continue
        if any(text.partition("=")[0].strip() == key for text in sets):
            raise WrongUsage(
                f"{option} {value} is short for --set {key}=..., which is there too; leave one of them out"
            )
        found.append(f"{key}={value.absolute()}")
    return found


async def _sandboxes(settings: SandboxConfig) -> list[Check]:
    if settings.backend == "docker" and not settings.host_base:
        return await daemon_checks(settings.docker)
    return await sandbox_checks(settings=settings)


def _check_machine(run_dir: Path, settings: SandboxConfig) -> None:
    checks = bad([*machine_checks(run_dir), *trio.run(_sandboxes, settings)])
    if checks:
        raise CommandFailed("; ".join(check.text for check in checks) + "; `t1 doctor` shows all checks")


def _say(lines: Sequence[str], display: DisplayMode) -> None:
    """What a person should know before the display begins; stdout is only for JSON lines where those are asked for."""
    if display != "quiet":
        print(
            "\n".join(lines),
            end="\n" if lines else "",
            file=sys.stderr if display == "json" else sys.stdout,
            flush=True,
        )


def _make_directory(run_dir: Path, *, given: bool) -> Path:
    """Two runs that begin in the same second get one each, unless it was asked for by name."""
    place = run_dir
    for number in itertools.count(2):
        try:
            place.mkdir(parents=True, exist_ok=given)
        except FileExistsError:
            if given:
                raise
            place = run_dir.with_name(f"{run_dir.name}-{number}")
        else:
            break
    return place


def _point_latest_at(run_dir: Path) -> None:
    """``latest`` beside the run, for the commands that one types after it."""
    link = run_dir.parent / "latest"
    if link.is_symlink() or not link.exists():
        fresh = run_dir.parent / f".latest-{os.getpid()}"
        fresh.symlink_to(run_dir.name)
        fresh.replace(link)


# --- the run, and the display beside it ---------------------------------------------------------------------------------


def _show_and_conclude(plan: RunPlan, display: DisplayMode, sessions: int = 0) -> int:
    run_dir = plan.run_dir
    _point_latest_at(run_dir)
    shown = open_display(display)
    try:
        try:
            result = trio.run(_supervised, plan, shown, sessions)
        finally:
            shown.end()
        return conclude(run_dir, result, quiet=display in ("quiet", "json"))
    except KeyboardInterrupt:
        # Before its first event or behind its last: the supervisor takes every signal in between.
        print(f"t1: interrupted; `t1 report {run_dir}` makes the report of what there is", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if explain(error) is not None:  # a full disk, say: main tells it; here is how to go on afterwards
            print(f"resume   {resume_command(run_dir)}", file=sys.stderr)
        raise


async def _supervised(plan: RunPlan, display: Display, sessions: int) -> RunResult:
    """The supervisor, and beside it a display that ends when all is shown."""
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_show, plan.run_dir, display, ended, sessions)
        result = await supervise(plan)
        ended.set()
    return result


async def _show(run_dir: Path, display: Display, ended: trio.Event, sessions: int) -> None:
    """What happened in earlier ``sessions`` is part of the view and is not told again."""
    view = RunView()
    try:
        async with trio.open_nursery() as beside:
            beside.start_soon(_suspend_with_ctrl_z, display)
            async for frames in follow(FileLog(run_dir / "log"), ended=ended.is_set, sessions=sessions):
                happened: list[tuple[int, Happening]] = []
                for frame in frames:
                    events = fold_frame(view, frame)
                    if view.sessions > sessions:
                        happened += [(frame.head.wall_ns, h) for h in happenings(view, events)]
                if view.sessions > sessions:
                    display.show(happened, view, time.time_ns())
                # A redraw costs more than what it shows: gather for a moment.
                with trio.move_on_after(REFRESH_S):
                    await ended.wait()
            beside.cancel_scope.cancel()
    finally:
        display.close(view, time.time_ns())


async def _suspend_with_ctrl_z(display: Display) -> None:
    """Ctrl-Z stops this process, and the display with it; the actors lead their own process groups and go on."""
    if not stops_with_ctrl_z():
        return
    with trio.open_signal_receiver(signal.SIGTSTP) as signals:
        async for _ in signals:
            display.suspend()
            stop_here()
