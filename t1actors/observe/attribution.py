"""Which step and which trial an event belongs to: its own fields, its trial's launch, or the key of its effect."""

from __future__ import annotations

from t1actors.events import AnyEvent, StepOpened, TrialReplaced, UnknownEvent


class Attribution:
    """Learns launches by ``note`` (events in causal order), then answers."""

    def __init__(self) -> None:
        self.step_of_trial: dict[str, int] = {}

    def note(self, event: AnyEvent | UnknownEvent) -> None:
        """Take in an event that says which step a trial is of."""
        match event:
            case StepOpened():
                self.step_of_trial.update((spec.trial, event.step) for spec in event.trials)
            case TrialReplaced():
                self.step_of_trial[event.replacement.trial] = event.step
            case _:
                pass

    def trial(self, event: AnyEvent | UnknownEvent) -> str | None:
        """The trial, or None."""
        trial = getattr(event, "trial", None)
        if isinstance(trial, str):
            return trial
        key = getattr(event, "key", None)
        first = key.partition("/")[0] if isinstance(key, str) else None
        return first if first in self.step_of_trial else None

    def step(self, event: AnyEvent | UnknownEvent) -> int | None:
        """The step, or None."""
        step = getattr(event, "step", None)
        if isinstance(step, int):
            return step
        trial = self.trial(event)
        if trial is not None:
            return self.step_of_trial.get(trial)
        key = getattr(event, "key", None)
        if not isinstance(key, str):
            return None
        first, _, rest = key.partition("/")
        number = rest.partition("/")[0]
        return int(number) if first in ("step", "barrier") and number.isdigit() else None
