"""`t1 config`: the configuration, resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from t1actors.config import preset_names, resolve, to_toml

Preset = Annotated[str, Parameter(help=f"One of {', '.join(preset_names())}.")]
ConfigFile = Annotated[Path | None, Parameter(name="--config", help="A TOML file over the preset.")]
Sets = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set", help="key=value over preset and file; may be given again.", negative=(), show_default=False
    ),
]


def show(*, preset: Preset | None = None, config: ConfigFile = None, sets: Sets = ()) -> None:
    """Print the resolved configuration as TOML, with where each value came from.

    What it prints is a configuration file: save it, change it, pass it with --config.

    Example: `t1 config show --preset demo --set train.actor.clip=0.1`
    """
    resolved = resolve(preset=preset, file=config, sets=sets)
    print(to_toml(resolved.config, resolved.origins), end="")
