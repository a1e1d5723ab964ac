"""Which harness a run uses: the one place that knows them all."""

from __future__ import annotations

from t1actors.config import RolloutConfig
from t1actors.harness.command.hands import CommandHands
from t1actors.harness.interface import Hands, Harness
from t1actors.harness.shell import ShellHands, ShellHarness
from t1actors.harness.terminus.harness import TerminusHands, TerminusHarness
from t1actors.models.tokenizer import Tokenizer
from t1actors.tito.render.choice import renderer_for


def make_harness(rollout: RolloutConfig, tokenizer: Tokenizer) -> Harness:
    """The sampler's half. With ``command`` a program tells the model what it wants; a task takes at least what the shell
    harness writes of it."""
    if rollout.harness == "terminus":
        return TerminusHarness(renderer_for(tokenizer), rollout.terminus, turn_s=rollout.command_deadline_s)
    return ShellHarness(tokenizer)


def make_hands(rollout: RolloutConfig) -> Hands:
    """The pool's half."""
    if rollout.harness == "command":
        return CommandHands(limit_s=rollout.command_deadline_s)
    if rollout.harness == "terminus":
        return TerminusHands(rollout.terminus, turn_s=rollout.command_deadline_s)
    return ShellHands(limit_s=rollout.command_deadline_s, observation_chars=rollout.observation_chars)


def programs_of(rollout: RolloutConfig) -> tuple[str, ...]:
    """Programs that the harness needs in a sandbox."""
    return ("tmux",) if rollout.harness == "terminus" else ()
