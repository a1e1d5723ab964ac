"""Whole numbers on the command line: 1.5 is refused, not rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token

from t1actors.cli.errors import WrongUsage


def _whole(type_: type, tokens: Sequence[Token]) -> int:
    (token,) = tokens
    try:
        return int(token.value)
    except ValueError as error:
        raise WrongUsage(f"{token.keyword or 'the number'} {token.value}: must be a whole number") from error


Whole = Annotated[int, Parameter(converter=_whole)]


def at_least(least: int, option: str, number: int) -> None:
    """Raises ``WrongUsage`` where the number given with ``option`` is smaller."""
    if number < least:
        raise WrongUsage(f"{option} {number}: must be at least {least}")
