"""The 13 sub-goal families. A family is a pure function of seeded draws and of names the task has not used."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from t1actors.tasks.families import changing, counting, making, selecting
from t1actors.tasks.families.shape import Family

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "mkdir": making.mkdir,
        "write": making.write,
        "count": counting.count,
        "sum": counting.sum_column,
        "sort": counting.sort,
        "grep": selecting.grep,
        "chmod": changing.chmod,
        "rename": changing.rename,
        "sed": changing.sed,
        "tar": changing.tar,
        "hint": making.hint,
        "move": making.move,
        "head": selecting.head,
    }
)
"""By name, in the order that tasks draw from: adding or reordering one changes what seeds mean."""
