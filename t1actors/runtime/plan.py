"""What a supervisor is to run: a run's directory, configuration and actors, and how long it waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from t1actors.config import Config
from t1actors.runtime.numerics import Numerics


@dataclass(frozen=True)
class ActorPlan:
    """``factory`` is ``package.module:attribute``."""

    name: str
    factory: str


@dataclass(frozen=True)
class RunPlan:
    """``concludes`` names the actor whose RunFinished or RunFailed ends the run, and whose RunPaused answers a
    StopRequested; ``environment`` and ``numerics`` are what RunStarted records of the machine, and of the kernels that
    the actors are to use; ``env`` are environment variables for the actors; ``replicas`` are actors of which one is
    enough."""

    run_dir: Path
    config: Config
    actors: tuple[ActorPlan, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    numerics: Numerics = field(default_factory=Numerics)
    concludes: str = "publisher"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    replicas: frozenset[str] = frozenset()
    program: str = "t1actors.runtime.process"
    """The module that hosts an actor as one process."""
    stop_grace_s: float = 10.0
    ready_deadline_s: float = 600.0
    silence_s: float = 120.0
    """A ready actor that says nothing for so long hangs: it is killed, and started again."""
