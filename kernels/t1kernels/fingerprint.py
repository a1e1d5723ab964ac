"""What decides the bits of a computation on this machine, so that a replay elsewhere can say what differs and where.

Two halves. ``operations`` computes: a hash of the output bytes of every operation of an implementation, in float32 and
bfloat16, and of those of torch that this program relies on, on the fixed inputs of ``samples``. Equal hashes mean
equal bits for these operations, whatever the machine is called. ``surroundings`` reads: versions, builds, processor,
threads, environment variables; it says why hashes may differ.

Guarantees: the same on every call in an unchanged installation and environment. Left to the caller: its own constants.
Two are compared by ``t1kernels.hashes``, which needs no torch.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path

import blake3
import torch
from torch import Tensor

from t1kernels.hashes import COMBINED, PREFIX
from t1kernels.interface import PAGE, Kernels
from t1kernels.native import NativeKernels
from t1kernels.native.library import build
from t1kernels.probe import DTYPES, name_of, one_thread
from t1kernels.samples import GRAINS, LENGTHS, ROWS, samples, values

PACKAGES = ("numpy", "safetensors", "tokenizers", "torch", "transformers")
VARIABLES = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "TORCH_")
_LIBRARIES = ("GCC", "clang", "Intel(R)", "OpenMP", "BLAS", "OpenBLAS")
_FLAGS = re.compile(r"amx|asimd|avx|bf16|f16c|fma|fphp|neon|sse|sve")


def fingerprint(kernels: Kernels) -> dict[str, str]:
    """Operations and surroundings, by name."""
    return {**surroundings(kernels), **operations(kernels)}


@one_thread()
def operations(kernels: Kernels) -> dict[str, str]:
    """A hash for each operation, and one over all of them."""
    parts: dict[str, str] = {}
    for dtype in DTYPES:
        made = samples(kernels, dtype)
        found: dict[str, Iterable[Tensor]] = {
            **{name: run(torch.arange(ROWS)) for name, run in made.rows.items()},
            **{name: (run(range(GRAINS)),) for name, run in made.grains.items()},
            **{name: sum(run(range(len(LENGTHS))), ()) for name, run in made.sequences.items()},
        }
        parts.update({f"{PREFIX}{name_of(dtype)} {name}": _hash(tensors) for name, tensors in found.items()})
    parts.update({f"{PREFIX}torch {name}": _hash(run()) for name, run in TORCH_OPERATIONS.items()})
    return {COMBINED: _digest("\n".join(f"{name} {parts[name]}" for name in sorted(parts)).encode()), **parts}


def surroundings(kernels: Kernels) -> dict[str, str]:
    """What may explain other bits."""
    return {
        "kernels": kernels.name,
        **(build() if isinstance(kernels, NativeKernels) else {}),
        "page": str(PAGE),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "torch_build": _torch_build(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "machine": platform.machine(),
        "processor": _processor("model name") or platform.processor() or "unknown",
        "processor_flags": " ".join(
            sorted({flag for flag in _processor("flags", "Features").split() if _FLAGS.search(flag)})
        ),
        "variables": " ".join(f"{name}={os.environ[name]}" for name in sorted(os.environ) if _decides(name)),
    }


def _torch_build() -> str:
    """The commit, the compiler and the numeric libraries."""
    said = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    return "; ".join([str(torch.version.git_version), *(line for line in said if line.startswith(_LIBRARIES))])


def _decides(variable: str) -> bool:
    """Whether a library may compute otherwise with it. The number of threads has a line of its own."""
    return variable.startswith(VARIABLES) and not variable.endswith("_NUM_THREADS")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _processor(*keys: str) -> str:
    """The first line of /proc/cpuinfo of one of these names; empty where there is none."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in keys), "")


def _digest(data: bytes) -> str:
    return blake3.blake3(data).hexdigest()[:16]


def _hash(tensors: Iterable[Tensor]) -> str:
    parts: list[bytes] = []
    for tensor in tensors:
        parts.append(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        parts.append(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return _digest(b"".join(parts))


# --- torch's own operations that the forward, the losses, the optimizer and a new model's weights rest on -------------------

_COUNT = 257
"""Elements: whole vector registers and a rest."""


def _adamw() -> tuple[Tensor, ...]:
    """The operations of ``t1actors.train.optimizer``, one by one."""
    weight, gradient, first, second = (values(_COUNT, salt=n) for n in (31, 32, 33, 34))
    first.mul_(0.9).add_(gradient * (1.0 - 0.9))
    second.square_().mul_(0.98).add_(gradient.square().mul_(1.0 - 0.98))
    denominator = second.sqrt().div_(math.sqrt(1.0 - 0.98**3)).add_(1e-8)
    weight.mul_(1.0 - 1e-3 * 0.1).sub_((first / denominator).mul_(1e-3 / (1.0 - 0.9**3)))
    return weight, first, second


def _rotary() -> tuple[Tensor, ...]:
    """Angles as Hugging Face's models make them."""
    frequency = 1.0 / (10000.0 ** (torch.arange(0, 32, 2, dtype=torch.int64).float() / 32))
    angle = (frequency[:, None] @ torch.arange(512)[None].float()).t()
    angle = torch.cat((angle, angle), dim=-1)
    return angle, angle.cos(), angle.sin()


def _seeded(draw: Callable[[torch.Generator], Tensor]) -> tuple[Tensor]:
    return (draw(torch.Generator().manual_seed(1)),)


TORCH_OPERATIONS: Mapping[str, Callable[[], tuple[Tensor, ...]]] = {
    "index_select": lambda: (values(70, 48, salt=41).index_select(0, (torch.arange(90) * 11) % 70),),
    "add": lambda: (values(_COUNT, salt=42) + values(_COUNT, salt=43),),
    "add bfloat16": lambda: (values(_COUNT, salt=42).bfloat16() + values(_COUNT, salt=43).bfloat16(),),
    "to bfloat16": lambda: ((values(_COUNT, salt=44) * values(_COUNT, salt=45)).bfloat16(),),
    "float64 to float32": lambda: ((values(_COUNT, salt=46).double() / 3).float(),),
    "exp": lambda: (torch.exp(values(256, salt=47)),),
    "softmax": lambda: (values(16, 64, salt=48).softmax(-1),),
    "clamp, minimum, maximum, square": lambda: (
        torch.minimum(values(_COUNT, salt=49), values(_COUNT, salt=50)),
        torch.maximum(values(_COUNT, salt=49), values(_COUNT, salt=50)).clamp(-0.8, 1.2).square(),
    ),
    "rotary angles": _rotary,
    "adamw": _adamw,
    "normal": lambda: _seeded(lambda draws: torch.empty(_COUNT).normal_(generator=draws)),
    "uniform": lambda: _seeded(lambda draws: torch.empty(_COUNT).uniform_(generator=draws)),
}
