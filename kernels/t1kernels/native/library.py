"""The compiled library: where it is, and its functions with their C signatures.

Left to others: tensors (``t1kernels.native``), what happens where there is none (``t1kernels.choice``).
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import blake3


class NativeUnavailable(ImportError):
    """The compiled kernels are not there, or not for this processor. Says which."""


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled library. Raises ``NativeUnavailable``."""
    folder = Path(__file__).parent
    found = [folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES]
    path = next((p for p in found if p.is_file()), None)
    if path is None:
        raise NativeUnavailable(
            f"no compiled kernels in {folder}: they are built by pip install where a C compiler is "
            "(Debian or Ubuntu: apt-get install gcc)"
        )
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(
            f"{path} cannot be loaded here ({error}); install the package again on this machine"
        ) from error
    interface = getattr(loaded, "t1_interface", None)
    if interface is None or interface() != INTERFACE:  # called all the same, they would read and write anywhere
        raise NativeUnavailable(f"{path} was compiled from other sources than these; install again: pip install -e .")
    return loaded


INTERFACE = 1
"""Of the signatures below; ``t1_interface`` in portable.c says the same. One more when one of them changes."""

_P, _I, _F, _D, _N = c_void_p, c_int64, c_float, c_double, c_int
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "matmul": (None, [_I, _I, _I, _I, _P, _P, _P, _N]),
    "grouped_matmul": (None, [_I, _P, _I, _I, _P, _P, _P]),
    "weight_gradient": (_F, [_I, _I, _P, _P, _I, _P, _P, _P, _P, _D, _P]),
    "attend": (None, [_I, _I, _I, _I, _P, _P, _P, _P, _P, _F, _P, _P]),
    "store_rows": (None, [_I, _I, _I, _P, _P, _P, _P, _P, _P]),
    "attention_gradient": (None, [_I, _P, _P, _I, _I, _I, _I, _P, _P, _P, _P, _P, _P, _F, _D, _P, _P, _P, _P, _P]),
    "logprob": (None, [_I, _I, _I, _P, _P, _P, _F, _N, _P, _P, _P, _P]),
    "logprob_gradient": (_F, [_I, _I, _P, _P, _P, _P, _P, _P, _F, _N, _I, _P, _P, _P, _D, _P, _P, _I, _P]),
    "draw": (None, [_I, _I, _P, _P, _P, _N, _P, _P, _P, _P]),
    "rms_norm": (None, [_N, _I, _I, _P, _P, _F, _P, _P]),
    "rms_norm_gradient": (_F, [_N, _I, _P, _P, _P, _P, _I, _P, _P, _D, _P, _P, _P]),
    "rope": (None, [_N, _I, _I, _I, _P, _P, _P, _F, _P]),
    "silu_mul": (None, [_N, _I, _I, _P, _P]),
    "silu_mul_gradient": (None, [_N, _I, _I, _P, _P, _P]),
    "select_experts": (None, [_N, _I, _I, _I, _P, _P, _P]),
    "gate": (None, [_N, _I, _I, _I, _P, _P, _N, _P, _P]),
    "gate_gradient": (None, [_N, _I, _I, _I, _P, _P, _N, _P, _P, _P]),
    "combine": (None, [_N, _I, _I, _I, _P, _P, _P, _P]),
    "combine_gradient": (None, [_N, _I, _I, _I, _P, _P, _P, _P, _P, _P]),
    "embedding_gradient": (_F, [_N, _I, _I, _P, _P, _D, _P]),
}
PLAIN: dict[str, tuple[Any, list[Any]]] = {
    "pack_transposed": (None, [_I, _I, _P, _P]),
    "pack": (None, [_I, _I, _P, _P]),
    "dispatch": (None, [_I, _I, _I, _P, _P, _P, _P]),
    "has_avx2": (_N, []),
}


def function(name: str, result: Any, arguments: list[Any]) -> Any:
    """An exported function with its types declared. Raises ``NativeUnavailable``."""
    function = getattr(library(), name)
    function.restype, function.argtypes = result, arguments
    return function


class Functions:
    """The exported functions of one instruction set."""

    def __init__(self, instructions: str) -> None:
        for name, (result, arguments) in SIGNATURES.items():
            setattr(self, name, function(f"t1_{instructions}_{name}", result, arguments))
        for name, (result, arguments) in PLAIN.items():
            setattr(self, name, function(f"t1_{name}", result, arguments))

    def __getattr__(self, name: str) -> Any:  # for type checkers: the functions are set above
        raise AttributeError(name)


def has_avx2_and_fma() -> bool:
    """Whether this processor runs the AVX2 build."""
    return bool(function("t1_has_avx2", *PLAIN["has_avx2"])())


def build() -> dict[str, str]:
    """What a fingerprint says of the compiled library: a digest of the file and, where it says so itself, its compiler."""
    found = {"kernels_build": blake3.blake3(Path(library()._name).read_bytes()).hexdigest()[:16]}
    compiler = getattr(library(), "t1_compiler", None)
    if compiler is not None:
        compiler.restype = ctypes.c_char_p
        found["kernels_compiler"] = compiler().decode()
    return found
