"""Why did step N diverge? Runs the step again, stops in the actor's or the critic's loss, and says which tokens and trials
did it.

    python examples/debug_step.py RUN STEP                    # the tables
    python examples/debug_step.py RUN STEP --update 2 --pdb   # break there: `view` is the update, `up` the actor's loss
    python examples/debug_step.py RUN STEP --critic --pdb     # the same in the critic's loss
    python examples/debug_step.py RUN STEP --without s12.t3   # what if that trial had not been in the batch

A script of cells (`# %%`): Jupyter, VS Code and Spyder run them one by one. Reads the run, never writes to it; works on a
step whose gradient was not finite too. Per token d = log pi - log pi_b, the log of the ratio that the loss clips; V is the
critic's value, R the return it is drawn towards.
"""

from __future__ import annotations

# %% What to look at
import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer
from t1actors.replay.inputs import ReplayImpossible
from t1actors.replay.run import Replayer
from t1actors.train.inspection import ActorUpdateView, CriticUpdateView

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run", type=Path, help="the directory of a run")
parser.add_argument("step", type=int)
parser.add_argument("--update", type=int, default=0, help="show this update; else the one with the largest |d|")
parser.add_argument("--pdb", action="store_true", help="stop at that update (without --update: at the first)")
parser.add_argument("--critic", action="store_true", help="--pdb stops at the critic's update, not at the actor's")
parser.add_argument(
    "--without", default="", metavar="TRIAL", help="else the trial that moves the loss most is left out"
)
parser.add_argument("--worst", type=int, default=10, help="how many tokens and trials")
options = parser.parse_args()


# %% How to look
def look(
    replayer: Replayer, step: int, *, stop: bool = False, without: str = ""
) -> tuple[list[ActorUpdateView], list[CriticUpdateView], str]:
    """Every update of the step's actor and critic, as it was before the optimizer; and what the replay found."""
    actor: list[ActorUpdateView] = []
    critic: list[CriticUpdateView] = []

    def inspect(view: ActorUpdateView) -> None:
        actor.append(view)
        if stop and not options.critic and view.update == (options.update or 1):
            breakpoint()  # `view` is here; `up` goes to the actor's loss

    def inspect_critic(view: CriticUpdateView) -> None:
        critic.append(view)
        if stop and options.critic and view.update == (options.update or 1):
            breakpoint()  # `view` is here; `up` goes to the critic's loss

    edit = (lambda batch: batch.without(without)) if without else None
    report = replayer.step(step, inspect=inspect, inspect_critic=inspect_critic, edit=edit)
    said = report.impossible or ("bit-exact" if report.first is None else report.first.text())
    return actor, critic, said


def table(head: str, rows: Sequence[Sequence[object]]) -> None:
    """Columns wide enough for what they hold."""
    cells = [head.split(), *([f"{c:.4g}" if isinstance(c, float) else str(c) for c in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def summary(view: ActorUpdateView) -> list[object]:
    """One line of the table of updates."""
    log_ratio_n = np.abs(view.log_ratio_n)
    engine_n = np.abs(view.behaviour_n - view.sampler_n)
    return [
        view.step, view.update, len(view.places), len(view.tokens_n), float(view.loss_n.mean()), float(log_ratio_n.max()),
        view.kl, float(view.clipped_n.mean()), float(engine_n.max()), float(np.abs(view.advantage_n).max()),
        view.gradient_norm,
    ]  # fmt: skip


def critic_summary(view: CriticUpdateView) -> list[object]:
    """One line of the table of the critic's updates."""
    error_n = np.abs(view.error_n)
    return [
        view.step, view.update, len(view.places), len(view.tokens_n), float(view.loss_n.mean()), float(error_n.mean()),
        float(error_n.max()), float(view.clipped_n.mean()), view.gradient_norm,
    ]  # fmt: skip


UPDATES = "step update trials tokens loss max|d| KL clipped max|engine| max|A| |gradient|"
CRITIC_UPDATES = "step update trials tokens loss mean|V-R| max|V-R| clipped |gradient|"


def text_of(view: ActorUpdateView, n: int, tokenizer: Tokenizer) -> str:
    """The token between what stands before and behind it."""
    place = view.place(n)
    ids = place.trial.chunks[place.chunk].ids_N.tolist()
    parts = (ids[max(place.position - 6, 0) : place.position], [place.id], ids[place.position + 1 :][:4])
    before, token, behind = (repr(tokenizer.decode(part))[1:-1] for part in parts)
    return f"{before}[{token}]{behind}"


def norms(view: ActorUpdateView) -> dict[str, float]:
    """The norm of each tensor's gradient."""
    return {name: float(torch.linalg.vector_norm(gradient)) for name, gradient in view.gradients.items()}


# %% The step, again
replayer = Replayer.open(options.run)
try:
    tokenizer = Tokenizer.from_folder(model_folder(replayer.inputs.config.model.policy))
    batch = replayer.batch(options.step)
except ReplayImpossible as error:
    raise SystemExit(f"debug_step: {error}") from error
if options.without and options.without not in [trial.trial for trial in batch.trials]:
    first, last = batch.trials[0].trial, batch.trials[-1].trial
    raise SystemExit(f"debug_step: --without {options.without}: not in the step's batch, which has {first} to {last}")
views, critic_views, said = look(replayer, options.step, stop=options.pdb)
print(f"step {options.step} ({replayer.inputs.step(options.step).opened.purpose}): {said}")

# %% The critic: its updates, and the tokens that it is most wrong about
if critic_views:
    print("\nupdates of the critic; V - R is the error of its values")
    table(CRITIC_UPDATES, [critic_summary(view) for view in critic_views])
    first = critic_views[0]
    rows: list[list[object]] = []
    for n in map(int, np.argsort(-np.nan_to_num(np.abs(first.error_n), nan=np.inf), kind="stable")[: options.worst]):
        place = first.place(n)
        rows.append([
            place.trial.trial, place.turn, place.position, float(first.value_n[n]), float(first.return_n[n]),
            place.trial.reward,
        ])  # fmt: skip
    print(f"\nthe {len(rows)} tokens of its first update with the largest |V - R|")
    table("trial turn position V R reward", rows)
if not views:
    raise SystemExit(
        "debug_step: no update of the actor was run (an evaluation, or a step that trains the critic alone)"
    )

# %% Which update? Beside the step before
before = [n for n, s in sorted(replayer.inputs.steps.items()) if n < options.step and s.actor is not None]
views_before = look(replayer, before[-1])[0] if before else []
print("\nupdates of this step, and of the step before")
table(UPDATES, [summary(view) for view in (*views_before, *views)])
by_gap = max(views, key=lambda view: np.nan_to_num(np.abs(view.log_ratio_n), nan=np.inf).max())
view = next((v for v in views if v.update == options.update), by_gap)
config = replayer.inputs.config.train.actor
print(f"\nbelow: update {view.update} of {len(views)}; clip {config.clip:g}, gradient clip {config.gradient_clip:g}")

# %% Which tokens?
log_ratio_n = view.log_ratio_n
worst = np.argsort(-np.nan_to_num(np.abs(log_ratio_n), nan=np.inf), kind="stable")[: options.worst]
print(f"\nthe {len(worst)} tokens with the largest |d|: p_b and p are the probabilities then and now")
rows = []
for n in map(int, worst):
    place = view.place(n)
    rows.append([
        place.trial.trial, place.turn, place.position, float(log_ratio_n[n]), float(np.exp(view.behaviour_n[n])),
        float(np.exp(view.current_n[n])), float(view.behaviour_n[n] - view.sampler_n[n]), float(view.advantage_n[n]),
        float(view.value_n[n]), "yes" if view.clipped_n[n] else "", text_of(view, n, tokenizer),
    ])  # fmt: skip
table("trial turn position d p_b p engine A V clipped text", rows)

# %% Which trials?
print("\nthe trials that move the loss most: share of sum |loss| of the update")
total = float(np.abs(view.loss_n).sum()) or 1.0
of_n = np.repeat(view.places, [view.batch.trials[place].sampled for place in view.places])
share = {place: float(np.abs(view.loss_n[of_n == place]).sum()) / total for place in view.places}
heaviest = sorted(view.places, key=lambda place: -np.nan_to_num(share[place], nan=np.inf))
rows = []
for place in heaviest[: options.worst]:
    trial, mine = view.batch.trials[place], of_n == place
    rows.append([
        trial.trial, trial.record.task, trial.reward, trial.sampled, sum(len(c.turns) for c in trial.record.chunks),
        share[place], float(view.loss_n[mine].sum()) / len(view.loss_n), float(np.abs(log_ratio_n[mine]).max()),
        float(view.advantage_n[mine].mean()),
    ])  # fmt: skip
table("trial task reward tokens turns share loss max|d| mean(A)", rows)

# %% Which tensors? Against the first update of the step before
now, then = norms(view), norms(views_before[0]) if views_before else {}
print("\ngradient norm of each tensor, before clipping; x: against the step before")
order = sorted(now, key=lambda name: -np.nan_to_num(now[name], nan=np.inf))
rows = []
for name in order[: options.worst]:
    ratio = f"{now[name] / then[name]:.2f}" if then.get(name) else "-"
    rows.append([name, now[name], f"{(now[name] / view.gradient_norm) ** 2:.1%}", ratio])
table("tensor norm of|g|^2 x", rows)

# %% What if the worst trial had not been there?
left_out = options.without or view.batch.trials[heaviest[0]].trial
if len(batch.trials) > 1:
    print(f"\nthe step without {left_out} (its minibatches are cut anew)")
    table(UPDATES, [summary(v) for v in look(replayer, options.step, without=left_out)[0]])
print(f"\nnext: --pdb to stop there, --without TRIAL, `t1 log cat {options.run} --trial {left_out}` for its turns")
