"""Where a configured model lies: a Hugging Face folder, or ``builtin:NAME`` for one shipped with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

BUILTIN_PREFIX = "builtin:"


class ModelFolderError(Exception):
    """A configured model is not there. Says which, and what there is."""


def model_folder(policy: str) -> Path:
    """The folder of ``policy`` (a configuration value of ``model.policy``). Raises ``ModelFolderError``."""
    if policy.startswith(BUILTIN_PREFIX):
        name = policy.removeprefix(BUILTIN_PREFIX)
        root = Path(str(resources.files("t1actors"))) / "assets"
        folder = root / name
        if not (folder / "config.json").is_file():
            shipped = sorted(p.parent.name for p in root.glob("*/config.json"))
            raise ModelFolderError(f"model.policy = {policy!r}: no such built-in model; shipped: {', '.join(shipped) or 'none'}")
        return folder
    folder = Path(policy)
    if not (folder / "config.json").is_file():
        raise ModelFolderError(f"model.policy = {policy!r}: no config.json in that folder; it must be a Hugging Face model folder")
    return folder
