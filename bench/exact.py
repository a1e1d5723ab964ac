"""What exactness costs: the same work with exact kernels and with stock operations, in one run, and where a target is missed,
why.

    python -m bench.exact [--quick | --write] [--json FILE]

Four pieces of work (a packed forward, decode of 1 and of 32 sequences, a training step) at several widths, each

- with every exact implementation that is here, through the package's forward, engine and trainer;
- through the same code with torch's own operations (``stock_kernels``): what exact operations cost by themselves;
- through Hugging Face's module at its fastest settings (``exact_work``): what one would use instead.

A ratio divides by the faster of the two stock columns. `--write` replaces the section of bench/RESULTS.md. One thread.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from t1kernels.choice import IMPLEMENTATIONS, KernelsInexact, named_kernels
from t1kernels.interface import Kernels
from t1kernels.native import NativeUnavailable

from bench import exact_work as work
from bench.exact_memory import full_logits, selected_logprobs
from bench.exact_profile import Clocks, clocked, profile
from bench.measure import Sample, Spread, cpu, interleaved, ratios
from bench.stock_kernels import StockKernels
from bench.tables import Cell, Table, conclude, parser
from t1actors.models.policy import Policy

TARGET_FROM = 512
HUGGING_FACE, STOCK = "Hugging Face", "stock operations"
KINDS = {"forward": 1.3, "decode of 1": 1.5, "decode of 32": 1.5, "training step": 1.6}
"""Each kind of work and how often the stock time it may take, from ``TARGET_FROM`` on."""
MEMORY_TARGET = 0.1


@dataclass(frozen=True)
class Sizes:
    """Of one dtype. A forward and a step take ``sequences`` of ``length`` ids; decode begins after ``context`` ids and is
    timed over ``new_tokens``. ``logprobs``: rows, hidden, vocabulary."""

    dtype: str
    widths: tuple[int, ...]
    layers: int = 2
    sequences: int = 4
    length: int = 256
    decoded: tuple[int, int] = (1, 32)
    context: int = 192
    new_tokens: int = 6
    rounds: int = 3
    logprobs: tuple[int, int, int] = (256, 256, 151_936)


FULL = (
    Sizes("float32", (128, 256, 512, 1024)),
    Sizes(
        "bfloat16", (128, 512), sequences=2, length=128, context=64, new_tokens=4, rounds=2
    ),  # stock is slow without AVX-512
)
QUICK = (
    Sizes(
        "float32", (64,), layers=1, sequences=2, length=66, decoded=(1, 2), context=5, new_tokens=2, rounds=1,
        logprobs=(128, 16, 20_000),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One piece of work at one width: samples by column."""

    kind: str
    sizes: Sizes
    hidden: int
    tokens: int
    experts: str
    samples: Mapping[str, list[Sample]]

    @property
    def faster(self) -> str:
        """The stock column that took less."""
        return min((HUGGING_FACE, STOCK), key=lambda name: cpu(self.samples[name]).median)

    def ratio(self, name: str) -> Spread:
        """Of an implementation's time to the faster stock column's."""
        return ratios(self.samples[name], self.samples[self.faster], of_cpu=True)

    def missed(self, name: str) -> bool:
        return self.hidden >= TARGET_FROM and self.ratio(name).median > KINDS[self.kind]


def implementations() -> tuple[dict[str, Kernels], dict[str, str]]:
    """The exact kernels that are here, and why others are not."""
    found: dict[str, Kernels] = {}
    absent: dict[str, str] = {}
    for name in IMPLEMENTATIONS:
        try:
            found[name] = named_kernels(name)
        except (NativeUnavailable, KernelsInexact) as error:
            absent[name] = str(error)
    return found, absent


@dataclass(frozen=True)
class Bench:
    """The pieces of work of one model."""

    sizes: Sizes
    policy: Policy

    def ours(self, kind: str, kernels: Kernels) -> Callable[[], None]:
        """One round of ``kind`` through the package's code."""
        policy = work.on(self.policy, kernels)
        if kind == "forward":
            return work.forward(policy, self._ids(self.sizes.sequences, self.sizes.length))
        if kind == "training step":
            return work.Stepping(policy, self._ids(self.sizes.sequences, self.sizes.length + 1))
        prompts = self._ids(self._decoded(kind), self.sizes.context)
        return work.decode(policy, prompts, self.sizes.new_tokens, self.sizes.rounds + 4)

    def theirs(self, kind: str) -> tuple[str, Callable[[], None]]:
        """(experts implementation, one round of ``kind`` through Hugging Face's module)."""
        module = self.policy.hf
        if kind == "forward":
            ids = self._ids(self.sizes.sequences, self.sizes.length)
            return work.fastest(module, lambda: work.hf_forward(module, ids))
        if kind == "training step":
            own, ids = copy.deepcopy(module), self._ids(self.sizes.sequences, self.sizes.length + 1)
            return work.fastest(own, lambda: work.hf_step(own, ids))
        prompts = self._ids(self._decoded(kind), self.sizes.context)
        return work.fastest(module, lambda: work.hf_decode(module, prompts, self.sizes.new_tokens))

    def tokens(self, kind: str) -> int:
        """Of one round."""
        if kind in ("forward", "training step"):
            return self.sizes.sequences * self.sizes.length
        return self._decoded(kind) * self.sizes.new_tokens

    def measure(self, kind: str, kernels: Mapping[str, Kernels]) -> Measured:
        """All columns of one piece of work, in turns."""
        experts, theirs = self.theirs(kind)
        cases = {HUGGING_FACE: theirs, STOCK: self.ours(kind, StockKernels())}
        cases |= {name: self.ours(kind, one) for name, one in kernels.items()}
        samples = interleaved(cases, rounds=self.sizes.rounds)
        return Measured(kind, self.sizes, self.policy.shape.hidden, self.tokens(kind), experts, samples)

    def explain(self, kind: str, kernels: Kernels) -> dict[str, float]:
        """Seconds of a round by operation."""
        clocks = Clocks()
        run = self.ours(kind, clocked(kernels, clocks))
        return profile(clocks, run, times=1 if kind == "training step" else 2, optimizer=kind == "training step")

    def _ids(self, sequences: int, length: int) -> torch.Tensor:
        return work.ids(self.policy.shape.vocabulary, sequences, length)

    def _decoded(self, kind: str) -> int:
        return self.sizes.decoded[0] if kind == "decode of 1" else self.sizes.decoded[1]


def bench(sizes: Sizes, hidden: int) -> Bench:
    return Bench(sizes, work.model(hidden, sizes.layers, getattr(torch, sizes.dtype)))


def verdict(found: Measured, names: Sequence[str]) -> str:
    if found.hidden < TARGET_FROM:
        return ""
    return "; ".join(f"{name} {'**missed**' if found.missed(name) else 'met'}" for name in names)


def cost_table(kind: str, found: Sequence[Measured], names: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in (f for f in found if f.kind == kind):
        milliseconds = tuple(1000 * cpu(one.samples[n]).median for n in (HUGGING_FACE, STOCK, *names))
        ratio = tuple(one.ratio(name) for name in names)
        rows.append((one.sizes.dtype, one.hidden, one.tokens, one.experts, *milliseconds, *ratio, verdict(one, names)))
    return Table(
        f"Cost of exactness, {kind}",
        ("dtype", "hidden", "tokens", "experts of HF", f"{HUGGING_FACE} ms", f"{STOCK} ms", *(f"{n} ms" for n in names),
         *(f"{n} / faster stock" for n in names), f"at most {KINDS[kind]:g} from {TARGET_FROM} on"),
        tuple(rows),
    )  # fmt: skip


def profile_tables(found: Sequence[Measured], kernels: Mapping[str, Kernels]) -> list[Table]:
    """For each implementation the cell that misses its target by most, operation by operation."""
    tables: list[Table] = []
    for name, one in kernels.items():
        missed = [f for f in found if f.missed(name)]
        if not missed:
            continue
        worst = max(missed, key=lambda f: f.ratio(name).median / KINDS[f.kind])
        made = bench(worst.sizes, worst.hidden)
        exact, stock = made.explain(worst.kind, one), made.explain(worst.kind, StockKernels())
        whole, least = sum(exact.values()), sum(stock.values())
        rows: list[tuple[Cell, ...]] = [("all", 1000 * whole, 100.0, 1000 * least, 100 * (whole - least) / least)]
        for operation in sorted(exact.keys() | stock.keys(), key=lambda o: -exact.get(o, 0.0)):
            ours, theirs = exact.get(operation, 0.0), stock.get(operation, 0.0)
            if max(ours, theirs) >= 0.005 * whole:
                more = 100 * (ours - theirs) / least
                rows.append((operation, 1000 * ours, 100 * ours / whole, 1000 * theirs, more))
        title = f"Where the time goes: {name}, {worst.kind}, {worst.sizes.dtype}, hidden {worst.hidden}"
        note = (
            f"The missed target of {name} that is missed by most. CPU milliseconds of a round under clocks, and of the same "
            f"code with {STOCK}; the last column adds up to what exactness costs. Operations under 0.5 % are left out."
        )
        columns = ("operation", f"{name} ms", "% of it", f"{STOCK} ms", "more, % of all stock")
        tables.append(Table(title, columns, tuple(rows), note))
    return tables


def memory_table(some: Sequence[Sizes], kernels: Mapping[str, Kernels]) -> Table:
    count, hidden, vocabulary = some[0].logprobs
    mib, rows = 2**20, list[tuple[Cell, ...]]()
    for dtype in (sizes.dtype for sizes in some):
        kind = getattr(torch, dtype)
        logits = count * vocabulary * 4
        peaks = {"full logits, cross_entropy": full_logits(count, hidden, vocabulary, kind)}
        peaks |= {name: selected_logprobs(one, count, hidden, vocabulary, kind) for name, one in kernels.items()}
        for name, peak in peaks.items():
            share = max(peak.forward, peak.backward) / logits
            says = "" if name not in kernels else "met" if share < MEMORY_TARGET else "**missed**"
            rows.append((name, dtype, peak.forward / mib, peak.backward / mib, share, says))
    return Table(
        "Memory of log-probs",
        ("what", "dtype", "forward MiB", "backward MiB", "of the logits", f"below {MEMORY_TARGET:g}"),
        tuple(rows),
        f"{count:,} rows of hidden {hidden:,}, a vocabulary of {vocabulary:,}: float32 logits are "
        f"{count * vocabulary * 4 / mib:,.0f} MiB. The most that torch's allocator held at a time, above what was there "
        "before. Made before, once a version of the weights and independent of rows: the head as the kernels want it "
        f"({vocabulary * hidden * 4 / mib:,.0f} MiB in each direction for native, once for padded in bfloat16) and the "
        f"float64 sum of its gradient ({vocabulary * hidden * 8 / mib:,.0f} MiB).",
    )


def progress(found: Measured) -> str:
    """A line as soon as something is known."""
    took = ", ".join(f"{name} {1000 * cpu(samples).median:.1f}" for name, samples in found.samples.items())
    return f"{found.sizes.dtype}, hidden {found.hidden}, {found.kind}: {took} ms"


def work_of(sizes: Sizes) -> str:
    """What a round of each kind is."""
    return (
        f"{sizes.dtype}: forward and step of {sizes.sequences} sequences of {sizes.length} ids, decode of {sizes.new_tokens} "
        f"tokens for each sequence after {sizes.context} ids of context, {sizes.rounds} rounds."
    )


def run(some: Sequence[Sizes]) -> list[Table]:
    torch.set_num_threads(1)
    kernels, absent = implementations()
    found: list[Measured] = []
    for sizes in some:
        for hidden in sizes.widths:
            made = bench(sizes, hidden)
            for kind in KINDS:
                found.append(made.measure(kind, kernels))
                gc.collect()
                print(progress(found[-1]), file=sys.stderr, flush=True)
    tables = [cost_table(kind, found, list(kernels)) for kind in KINDS]
    note = (
        f"Qwen3-MoE of {some[0].layers} layers, {work.EXPERTS} experts of which {work.CHOSEN} are used, in the proportions "
        "of Qwen3-30B-A3B (experts 3/8 of the width, head a quarter of a token's multiply-adds). "
        + " ".join(work_of(sizes) for sizes in some)
        + " CPU milliseconds a round (one thread), medians of rounds in turns; a ratio is taken round by "
        f"round, to the faster of {HUGGING_FACE} and {STOCK}. A step is one update; that of {HUGGING_FACE} in bfloat16 has "
        "no float32 masters."
    )
    tables[-1] = Table(tables[-1].title, tables[-1].columns, tables[-1].rows, note)
    tables += profile_tables(found, kernels)
    tables.append(memory_table(some, kernels))
    if absent:
        tables.append(Table("Not measured", ("kernels", "why"), tuple(absent.items())))
    return tables


def main() -> None:
    arguments = parser(__doc__, writes=True).parse_args()
    conclude("exact", arguments, lambda: run(QUICK if arguments.quick else FULL))


if __name__ == "__main__":
    main()
