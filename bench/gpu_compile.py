"""Compiles every Triton kernel for a GPU that need not be there, through the code that would start it.

What a compiler knows without a device: that the kernel compiles, its registers and what it spills of them (stack), its
shared memory against what a multiprocessor has, and which instructions of the tensor cores it uses. Not: that it runs.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from t1kernels.interface import Kernels

from bench.gpu_cases import TO_COMPILE, Bench, all_cases
from bench.tables import Table

TARGET, SHARED = 90, 232_448
"""Compute capability, and bytes of shared memory that a program can have there (H100, H200)."""


class _NoDevice:
    """Stands in for Triton's driver: says which target to compile for."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", TARGET, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


@contextmanager
def compiling(into: dict[tuple[str, str], Any]) -> Iterator[None]:
    """Inside the block kernels are compiled and not started; ``into`` gets them by name and dtype of the first argument."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    start = JITFunction.run

    def compile_(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        compiled = start(self, *arguments, grid=grid, warmup=True, **named)
        key = (self.__name__, compiled.hash)
        into.setdefault(key, (compiled, str(arguments[0].dtype)[6:]))
        return compiled

    driver.set_active(cast(Any, _NoDevice()))
    JITFunction.run = compile_
    try:
        yield
    finally:
        JITFunction.run = start
        driver._active = None


def resources(compiled: Any) -> tuple[int, int]:
    """(registers of a thread, bytes of stack)."""
    import triton

    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def tensor_cores(compiled: Any) -> str:
    """Shapes and types of its instructions."""
    found = set(re.findall(r"(wgmma|mma)\S*\.(m\d+n\d+k\d+)\S*?\.(bf16|tf32|f16)", compiled.asm["ptx"]))
    return ", ".join(sorted(f"{kind} {shape} {dtype}" for kind, shape, dtype in found)) or "-"


def run() -> list[Table]:
    from t1kernels.triton_kernels.kernels import TritonKernels

    host = torch.device("cpu")
    found: dict[tuple[str, str], Any] = {}
    with compiling(found):
        for dtype in (torch.bfloat16, torch.float32):
            for make in all_cases(Bench(cast(Kernels, TritonKernels(host)), TO_COMPILE, dtype, host)):
                make().ours()
    rows = tuple(
        (name, dtype, *resources(one), one.metadata.shared, one.metadata.num_warps, tensor_cores(one))
        for (name, _), (one, dtype) in sorted(found.items(), key=lambda item: (item[0][0], item[1][1]))
    )
    columns = ("kernel", "first argument", "registers", "stack", "shared memory", "warps", "tensor cores")
    note = f"Compiled for compute capability {TARGET / 10:.1f}; nothing ran. A program can have {SHARED:,} bytes there."
    return [Table("Kernels, compiled", columns, rows, note)]
