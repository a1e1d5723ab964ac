"""The Triton kernels on a GPU: do they keep their contract, how far from the floor are they, and does a policy run on them.

    python -m bench.gpu [--json FILE] [--seconds N]     on a GPU: everything, in under four minutes
    python -m bench.gpu --interpret                     without one: tiny sizes in Triton's interpreter
    python -m bench.gpu --compile                       without one: compile every kernel for an H100 or H200

Each part runs in a process of its own with a limit of its own: one that fails or hangs loses itself and no other, and what
was found is written after every part. Without a GPU the command says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from t1kernels.interface import Kernels
from t1kernels.triton_kernels import TritonUnavailable, triton_kernels

from bench.tables import Table, as_json, markdown

ROOT = Path(__file__).parent.parent
CONTRACT = "tests/kernels/test_contract.py"
SHARES = {"products": "(product or weight)", "attention": "attention", "others": "not (product or weight or attention)"}
"""Of the contract's tests: most of the time goes into compiling kernels, a process at a time."""


@dataclass(frozen=True)
class Part:
    """``limit_s``: wall seconds after which it is ended. ``together``: may run beside others (nothing is timed)."""

    name: str
    limit_s: float
    together: bool = False


PARTS = (
    *(Part(f"probe {dtype}", 90, together=True) for dtype in ("float32", "bfloat16")),
    *(Part(f"contract-{share} {dtype}", 90, together=True) for dtype in ("float32", "bfloat16") for share in SHARES),
    Part("vocabulary bfloat16", 30),
    Part("products bfloat16", 30),
    Part("attention bfloat16", 30),
    Part("demo float32", 40),
    Part("demo bfloat16", 30),
    Part("larger bfloat16", 40),
    Part("rows bfloat16", 25),
    Part("products float32", 25),
    Part("attention float32", 25),
)
"""By worth: what the time does not suffice for is the last."""
TINY = tuple(Part(name, 300) for name in ("kernels float32", "tiny float32", "tiny bfloat16"))


def device() -> torch.device:
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def milliseconds(run: Callable[[], object]) -> float:
    """The median time on the device, its cache cold; in the interpreter one run."""
    if not torch.cuda.is_available():
        began_s = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - began_s)
    from triton.testing import do_bench

    return float(do_bench(run, warmup=10, rep=60, return_mode="median"))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Peaks:
    """Bytes a second of a copy, FLOPs a second of torch's product of large matrices of the dtype."""

    bandwidth: float
    rate: float

    @staticmethod
    def measured(size: int, dtype: torch.dtype) -> Peaks:
        where = device()
        big = torch.empty(size * size * 64 if where.type == "cuda" else size, dtype=torch.uint8, device=where)
        into = torch.empty_like(big)
        a, b = (torch.randn(size, size, device=where).to(dtype) for _ in range(2))
        seconds = [milliseconds(run) / 1000 for run in (lambda: into.copy_(big), lambda: a @ b)]
        return Peaks(2 * big.numel() / seconds[0], 2 * size**3 / seconds[1])

    def floor_s(self, bytes_: float, flops: float) -> tuple[float, str]:
        moving, computing = bytes_ / self.bandwidth, flops / self.rate
        return (moving, "bytes") if moving >= computing else (computing, "FLOPs")


def kernel_rows(part: str, dtype: torch.dtype, *, tiny: bool) -> list[Table]:
    """The cases of a part (``kernels``: of all). A case that fails is a row that says so."""
    from bench import gpu_cases

    sizes = gpu_cases.TINY if tiny else gpu_cases.LARGE
    bench = gpu_cases.Bench(triton_kernels(), sizes, dtype, device())
    makers = list(gpu_cases.all_cases(bench)) if part == "kernels" else bench.parts()[part]
    peaks = Peaks.measured(sizes.peaks, dtype)
    rows: list[tuple[Any, ...]] = []
    for make in makers:
        try:
            case = make()
            ours = milliseconds(case.ours)
            other = None if case.torch is None else milliseconds(case.torch)
        except Exception as error:  # noqa: BLE001 (whatever one case meets, the others are worth having)
            rows.append((make.__name__, f"failed: {type(error).__name__}: {str(error)[:200]}", *[None] * 6))
            continue
        floor_s, bound = peaks.floor_s(case.bytes_, case.flops)
        floor = 1000 * floor_s
        rows.append((case.name, case.shape, bound, floor, ours, floor / ours, other, other / ours if other else None))
        del case
        torch.cuda.empty_cache()
    columns = ("operation", "size", "bound", "floor ms", "ms", "floor / ms", "torch ms", "torch / ms")
    note = (
        f"Floor: at {peaks.bandwidth / 1e12:.2f} TB/s and {peaks.rate / 1e12:.0f} TFLOP/s in {str(dtype)[6:]}, both as torch "
        "reaches them here."
    )
    return [Table(f"{part}, {str(dtype)[6:]}", columns, tuple(rows), note)]


def contract(share: str, dtype: str) -> list[Table]:
    """A share of the contract's tests on the device; float32 has those without a dtype."""
    chosen = "not bfloat16" if dtype == "float32" else dtype
    which = ["-k", f"triton and {chosen} and {SHARES[share]}"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CONTRACT, *which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    failed = [line.removeprefix("FAILED ").split("::")[-1] for line in lines if line.startswith(("FAILED", "ERROR"))]
    rows: list[tuple[Any, ...]] = [("outcome", lines[-1] if lines else done.stderr[-300:])]
    rows += [("failed", name) for name in failed]
    return [Table(f"Contract, {share}, {dtype}", ("", "found"), tuple(rows))]


def probe(dtype: torch.dtype) -> list[Table]:
    """The probe that a run begins with, on the device."""
    from t1kernels.probe import not_invariant
    from t1kernels.triton_kernels.on_device import OnDevice

    found = not_invariant(cast(Kernels, OnDevice(triton_kernels())), (dtype,))
    rows = (("operations whose bits depend on the batch", ", ".join(found) or "none"),)
    return [Table(f"Probe, {str(dtype)[6:]}", ("", "found"), rows)]


def run_part(name: str) -> list[Table]:
    """In the part's own process."""
    kind, dtype_name = name.split()
    dtype = getattr(torch, dtype_name)
    if kind.startswith("contract-"):
        return contract(kind.removeprefix("contract-"), dtype_name)
    if kind == "probe":
        return probe(dtype)
    if kind in ("demo", "larger", "tiny"):
        from bench import gpu_model

        work = {"demo": gpu_model.DEMO, "larger": gpu_model.LARGER, "tiny": gpu_model.TINY}[kind]
        return [gpu_model.run(work, triton_kernels(), dtype, device())]
    return kernel_rows(kind, dtype, tiny=not torch.cuda.is_available())


class Running:
    """A part in its process."""

    def __init__(self, part: Part, folder: Path, limit_s: float) -> None:
        self.part = part
        self._into = folder / f"{part.name}.json"
        self._said = (folder / f"{part.name}.txt").open("w+")
        self._ends_s = time.perf_counter() + limit_s
        self._limit_s = limit_s
        command = [sys.executable, "-m", "bench.gpu", "--part", part.name, "--json", str(self._into)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=self._said, stderr=subprocess.STDOUT)

    def tables(self) -> dict[str, Any]:
        """What it found, or why it found nothing."""
        try:
            self._process.wait(max(0.1, self._ends_s - time.perf_counter()))
            why = f"ended with {self._process.returncode}"
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            why = f"not done within {self._limit_s:.0f} s"
        self._said.seek(0)
        said = self._said.read()
        self._said.close()
        if self._into.exists():
            return json.loads(self._into.read_text())
        table = Table(
            self.part.name, ("", "found"), (("outcome", why), ("last lines", said[-600:].replace("\n", " / ")))
        )
        return {"tables": [as_json(table)], "markdown": [markdown(table)]}


def run_all(parts: Sequence[Part], arguments: argparse.Namespace) -> None:
    """Those that may together, then one after the other; what is found is printed and written at once."""
    began_s = time.perf_counter()
    found: dict[str, Any] = {"machine": machine(), "parts": {}}
    with tempfile.TemporaryDirectory() as name:
        waiting = [Running(p, Path(name), p.limit_s) for p in parts if p.together]
        for part in parts:
            left_s = arguments.seconds - (time.perf_counter() - began_s)
            if part.together:
                running = waiting.pop(0)
            elif left_s < 5:
                print(f"\n{part.name}: no time left (--seconds {arguments.seconds:.0f})", flush=True)
                continue
            else:
                running = Running(part, Path(name), min(part.limit_s, left_s))
            one = running.tables()
            found["parts"][part.name] = one
            found["seconds"] = time.perf_counter() - began_s
            print("\n" + "\n\n".join(one["markdown"]), flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\n{time.perf_counter() - began_s:.0f} seconds")


def machine() -> dict[str, Any]:
    """What the figures are from."""
    kernels: Any = triton_kernels()
    said: dict[str, Any] = {"kernels": kernels.name, "torch": torch.__version__, **kernels.configuration}
    if torch.cuda.is_available():
        of = torch.cuda.get_device_properties(0)
        said |= {"multiprocessors": of.multi_processor_count, "memory": f"{of.total_memory / 2**30:.0f} GiB"}
    return said


def write(path: Path | None, tables: Sequence[Table]) -> None:
    if path is not None:
        found = {"tables": [as_json(t) for t in tables], "markdown": [markdown(t) for t in tables]}
        path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write what is found there, after every part")
    made.add_argument("--seconds", type=float, default=230, metavar="N", help="no part begins, or goes on, after them")
    made.add_argument(
        "--interpret", action="store_true", help="tiny sizes in Triton's interpreter; the times mean nothing"
    )
    made.add_argument("--compile", action="store_true", help="compile every kernel for an H100 or H200 and start none")
    made.add_argument("--part", help=argparse.SUPPRESS)
    arguments = made.parse_args()
    if arguments.part is not None:
        write(arguments.json, run_part(arguments.part))
        return
    if find_spec("triton") is None:
        print("bench.gpu: triton is not installed; nothing was measured (pip install 't1actors[gpu]')")
        return
    if arguments.compile:
        from bench import gpu_compile

        tables = gpu_compile.run()
        print("\n\n".join(markdown(t) for t in tables))
        write(arguments.json, tables)
        return
    if arguments.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        triton_kernels()
    except TritonUnavailable as error:
        print(f"bench.gpu: {error}; nothing was measured (--interpret and --compile work without one)")
        return
    run_all(TINY if arguments.interpret else PARTS, arguments)


if __name__ == "__main__":
    main()
