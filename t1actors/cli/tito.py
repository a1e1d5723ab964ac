"""`t1 tito stitch`: how the calls of a foreign harness join, before anything is trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from cyclopts import Parameter
from tokenizers import Tokenizer

from t1actors.cli.errors import CommandFailed, WrongUsage
from t1actors.models.folder import BUILTIN_PREFIX, model_folder
from t1actors.tito.boundary import Edges
from t1actors.tito.foreign import ForeignCall, joins_of, shares_of

WIDTH = 11
_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Line(msgspec.Struct, frozen=True):
    """A call; what else stands in its line is not looked at."""

    prompt_ids: tuple[_Id, ...]
    sampled_ids: tuple[_Id, ...]
    trial: str = ""


class _Text:
    def __init__(self, raw: Tokenizer) -> None:
        self._raw = raw

    def decode(self, ids: Sequence[int]) -> str:
        return self._raw.decode(list(ids), skip_special_tokens=False)


def stitch(
    file: Path,
    *,
    tokenizer: str,
    rule: Literal["strict", "t1"] = "t1",
    stop: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    marker: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
) -> None:
    """Print how each call of FILE continues the one before it, and what repairs would do to its trials.

    FILE has a JSON object a line, a call each, in order: prompt_ids (the whole prompt), sampled_ids and, of several trials,
    trial. Log-probs and routing, which a record needs too, are not looked at.

    Example: `t1 tito stitch calls.jsonl --tokenizer my-model`

    Parameters
    ----------
    tokenizer
        The model's folder, for the text of ids.
    rule
        "t1" repairs what T1 does; "strict" splits instead.
    stop
        A token that ends a turn, by its text; may be given again. By default every special token.
    marker
        A token with which the next role begins, in families without an end of turn; may be given again.
    """
    raw = _tokenizer(model_folder(tokenizer) if tokenizer.startswith(BUILTIN_PREFIX) else Path(tokenizer))
    special = [token for token, added in raw.get_added_tokens_decoder().items() if added.special]
    markers = [_id(raw, text) for text in marker]
    stops = [*(_id(raw, text) for text in stop), *markers] if stop else [*special, *markers]
    edges = Edges(text=_Text(raw), stop_ids=frozenset(stops), markers=frozenset(markers))
    trials: dict[str, list[ForeignCall]] = {}
    for line in _lines(file):
        call = ForeignCall(
            prompt_ids=line.prompt_ids,
            sampled_ids=line.sampled_ids,
            logprobs=(),
            routing_RLK=np.empty((0, 0, 0), dtype=np.uint8),
            versions=(),
        )
        trials.setdefault(line.trial, []).append(call)
    for trial, calls in trials.items():
        if trial:
            print(f"trial {trial}")
        joins = joins_of(calls, edges, rule)
        for turn, joined in enumerate(joins, 1):
            edge = f"  s {joined.s}, u {joined.u}" if joined.case == "NORMALIZED" else ""
            span = f"  ids [{joined.start:,}, {joined.end:,}) of its prompt" if joined.case == "RETOKENIZED" else ""
            out = "  the mark stays out" if joined.left_out else ""
            print(f"turn {turn:<6,} {joined.case:<{WIDTH}}{edge}{span}{out}".rstrip())
        print(shares_of(calls, joins).text())


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise WrongUsage(f"--tokenizer {folder}: no tokenizer.json there")
    return Tokenizer.from_file(str(path))


def _id(raw: Tokenizer, text: str) -> int:
    found = raw.token_to_id(text)
    if found is None:
        raise WrongUsage(f"{text!r} is no token of this tokenizer")
    return found


def _lines(file: Path) -> list[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    found: list[_Line] = []
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise CommandFailed(f"{file}, line {number}: not a call: {error}") from error
        if not line.prompt_ids or not line.sampled_ids:
            raise CommandFailed(f"{file}, line {number}: a call has a prompt and an answer, at least one id each")
        found.append(line)
    if not found:
        raise CommandFailed(f"{file}: no calls")
    return found
