"""What a shell printed, as a function of the commands alone.

The shell's own complaints begin with the name of the file that it was given and a line number ("/dev/.t1/c: line 1:
foo: command not found"): an accident of the protocol, taken off. Nothing else is changed.
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"/dev/\.t1/(?:c|in): (?:eval: )?(?:line \d+: )?")


def plain_text(output: str) -> str:
    """``output`` without the shell's prefixes."""
    return _PREFIX.sub("", output)
