"""Whether images can be built and used where the store is, found out by building one. Runs with a stand-in need none."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import trio

from t1actors.cli.checks import Check, grouped
from t1actors.images.build import build
from t1actors.images.errors import ImageError
from t1actors.images.steps import BuildLimits
from t1actors.images.store import ImageStore
from t1actors.sandbox.errors import SandboxError
from t1actors.tasks.dockerfile import parse

GROUP = "images"
_LIMITS = BuildLimits(deadline_s=60.0, memory_mb=128, disk_mb=16)
_DOCKERFILE = "FROM t1-probe\nRUN echo made >/made; chown 1:2 /made\nRUN test $(stat -c %u:%g /made) = 1:2\n"
"""The second command stands on the first one's layer, mounted with owners that are mapped."""
_FIX = "keep images on ext4, xfs, btrfs or tmpfs (--set sandbox.images=DIRECTORY), under Linux 5.19 or later"


def image_checks(store: Path) -> list[Check]:
    """Builds two instructions into a store beside ``store``, on the host's own /usr, and removes it."""
    place = store.expanduser().absolute()
    while not place.is_dir():
        place = place.parent
    recipe = parse(_DOCKERFILE, "Dockerfile")
    try:
        with tempfile.TemporaryDirectory(prefix=".t1-probe-", dir=place) as name:
            folder = Path(name)
            own = ImageStore(folder / "images")
            built = trio.run(partial(build, own, recipe, folder, limits=_LIMITS, host_base=True))
    except OSError as error:
        found = f"{place} cannot be written: {error.strerror}"
        return grouped(GROUP, [Check("store", "warning", found, "choose another: --set sandbox.images=DIRECTORY")])
    except (ImageError, SandboxError) as error:
        return grouped(GROUP, [Check("store", "warning", f"{place}: {error}", _FIX)])
    found = f"{len(built.image.layers)} layers built and mounted in {place}"
    return grouped(GROUP, [Check("store", "good", found)])
