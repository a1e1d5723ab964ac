"""Makes the golden file of encoded events: `python -m tests.golden_events` appends the kinds that it lacks.

Lines already there stay as they are: they are what version 1 wrote.
"""

import typing
from pathlib import Path

import msgspec

from t1actors.events import AnyEvent, encode

GOLDEN = Path(__file__).parent / "golden" / "events-v1.txt"
KINDS: dict[str, type[msgspec.Struct]] = {cls.__name__: cls for cls in typing.get_args(AnyEvent)}


def example(hint, name: str = ""):
    """A value of the annotated type, the same every time, that sets every field to something other than its default."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return arguments[-1]
    if origin is tuple:
        return tuple(example(a, name) for a in arguments if a is not Ellipsis)
    if origin is dict:
        return {"one": example(arguments[1], name)}
    if origin is not None and type(None) in arguments:
        return example(arguments[0], name)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = typing.get_type_hints(hint)
        return hint(
            **{f.name: 1 if f.name == "v" else example(fields[f.name], f.name) for f in msgspec.structs.fields(hint)}
        )
    return {int: 7, float: 0.25, str: f"{name} ü", bytes: b"\x00\xff", bool: True}[hint]


def golden() -> dict[str, bytes]:
    """Kind to encoded event, as the golden file has them."""
    lines = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    return {kind: bytes.fromhex(data) for kind, data in (line.split() for line in lines)}


if __name__ == "__main__":
    have = golden()
    with GOLDEN.open("a") as file:
        for name, cls in sorted(KINDS.items()):
            if name not in have:
                file.write(f"{name} {encode(example(cls)).hex()}\n")
