"""A policy on a device: does the sampler's record equal the trainer's in every bit, and how long does a step take.

It runs the package's own forward (``t1actors.models.trunk``) under torch's default device. What a run has besides, engine,
batches, optimizer state, lies in the host's memory so far; here a small sampler over pages and torch's AdamW stand in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from t1kernels.interface import PAGE, Kernels
from torch import Tensor
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

from bench.tables import Table
from t1actors.models.folder import model_folder
from t1actors.models.gradients import Gradients
from t1actors.models.policy import Policy, new_policy
from t1actors.models.pretrained import load_policy

TEMPERATURE = 0.9
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Work:
    """``prompts``: lengths; ``sampled`` tokens of each sequence; ``chunk`` rows of a prefill; ``steps`` of training."""

    name: str
    make: Callable[[], Policy]
    prompts: tuple[int, ...]
    sampled: int
    chunk: int
    steps: int


def made(hidden: int, layers: int, experts: int, *, vocabulary: int, heads: int, width: int) -> Policy:
    """A fresh policy on the CPU."""
    config = Qwen3MoeConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4), head_dim=width, num_experts=experts, num_experts_per_tok=min(4, experts),
        moe_intermediate_size=hidden // 2, intermediate_size=2 * hidden, decoder_sparse_step=1, mlp_only_layers=[],
        norm_topk_prob=True, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    return new_policy(config, seed=0)


DEMO = Work(
    "demonstration model",
    lambda: load_policy(model_folder("builtin:demo")),
    (60, 200, 64, 1, 130, 310, 90, 33),
    24,
    37,
    3,
)
LARGER = Work(
    "hidden 1,024, 8 layers, 16 experts",
    lambda: made(1024, 8, 16, vocabulary=32_000, heads=16, width=64),
    (900, 1024, 64, 1500, 700, 333, 1200, 2000), 24, 512, 1,
)  # fmt: skip
TINY = Work("tiny", lambda: made(16, 1, 4, vocabulary=70, heads=2, width=8), (3, 66), 2, 40, 1)


class Pages:
    """Keys and values of every layer, and the attention of a slab over them (``trunk.Attention``)."""

    def __init__(self, policy: Policy, sequences: int, positions: int, device: torch.device) -> None:
        shape = policy.shape
        self.slot = -(-positions // PAGE)
        size = (shape.layers, sequences * self.slot, shape.key_heads)
        self._keys = torch.empty(*size, shape.head_width, PAGE, device=device)
        self._values = torch.empty(*size, PAGE, shape.head_width, device=device)
        self.rows: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
        """First page and position of each row of the slab that comes next."""

    def __call__(
        self, kernels: Kernels, layer: int, query_NQD: Tensor, key_NGD: Tensor, value_NGD: Tensor, scale: float
    ) -> Tensor:
        keys, values = self._keys[layer], self._values[layer]
        kernels.store(keys, values, key_NGD, value_NGD, *self.rows)
        return kernels.attend(query_NQD, keys, values, *self.rows, scale)[0]


@dataclass
class Recorded:
    """What a sampler records: ids, and for each predicting row the experts; log-probs of what was sampled."""

    ids: list[int]
    routing: list[Tensor]
    logprobs: list[Tensor]


@torch.no_grad()
def sample(policy: Policy, work: Work, device: torch.device) -> list[Recorded]:
    """Prompts in chunks of one slab each, then all sequences together, a token a step."""
    draws = torch.Generator().manual_seed(1)
    found = [Recorded(torch.randint(0, policy.shape.vocabulary, (n,), generator=draws, device="cpu").tolist(), [], [])
             for n in work.prompts]  # fmt: skip
    pages = Pages(policy, len(found), max(work.prompts) + work.sampled, device)

    def slab(rows: Sequence[tuple[int, int]]) -> Tensor:
        """The final hidden states of rows (sequence, position)."""
        ids, at = ([found[s].ids[p] for s, p in rows], [p for _, p in rows])
        ids_N, position_N = torch.tensor(ids, device=device), torch.tensor(at, device=device)
        pages.rows = (torch.tensor([s * pages.slot for s, _ in rows], device=device), position_N)
        forwarded = policy.forward(ids_N, position_N, pages)
        for (number, _), routing_LK in zip(rows, forwarded.routing_NLK, strict=True):
            found[number].routing.append(routing_LK)
        return forwarded.hidden_NH

    last: list[Tensor] = []
    for number, length in enumerate(work.prompts):
        hidden = torch.empty(0)
        for top in range(0, length, work.chunk):
            hidden = slab([(number, p) for p in range(top, min(top + work.chunk, length))])
        last.append(hidden[-1])
    hidden = torch.stack(last)
    for step in range(work.sampled):
        chances = torch.rand(len(found), generator=draws, dtype=torch.float64, device="cpu").to(device)
        temperature = torch.full((len(found),), TEMPERATURE, device=device)
        token, logprob, _ = policy.kernels.draw(policy.logits(hidden), temperature, chances)
        for one, id_, value in zip(found, token.tolist(), logprob, strict=True):
            one.ids.append(id_)
            one.logprobs.append(value)
        if step + 1 < work.sampled:
            hidden = slab([(number, len(one.ids) - 1) for number, one in enumerate(found)])
    return found


def packed(policy: Policy, some: Sequence[Recorded], gradients: Gradients | None, device: torch.device) -> Tensor:
    """The trainer's log-probs of what was sampled in these sequences, routing replayed, in one slab."""
    ids_N = torch.tensor([i for one in some for i in one.ids[:-1]], device=device)
    targets_N = torch.tensor([i for one in some for i in one.ids[1:]], device=device)
    routing_NLK = torch.cat([torch.stack(one.routing) for one in some])
    lengths = [len(one.ids) - 1 for one in some]
    forwarded = policy.forward_packed(ids_N, lengths, routing_NLK, gradients=gradients)
    logprob_N, _ = policy.logprobs(forwarded.hidden_NH, targets_N, temperature=TEMPERATURE, gradients=gradients)
    sampled_N = [
        n >= length - len(one.logprobs) for one, length in zip(some, lengths, strict=True) for n in range(length)
    ]
    return logprob_N[torch.tensor(sampled_N, device=device)]


def accumulate(policy: Policy, slabs: Sequence[Sequence[Recorded]], device: torch.device) -> Gradients:
    """The gradient of the sum of the sampled tokens' log-probs, slab by slab."""
    gradients = policy.gradients()
    for some in slabs:
        with torch.enable_grad():
            (-packed(policy, some, gradients, device).sum()).backward()
    return gradients


def gap(policy: Policy, found: Sequence[Recorded], device: torch.device) -> tuple[int, int, float]:
    """(sampled tokens, of these how many the trainer gives another log-prob, the largest difference)."""
    with torch.no_grad():
        trainers = packed(policy, found, None, device)
    samplers = torch.stack([value for one in found for value in one.logprobs])
    return len(samplers), int((samplers != trainers).sum()), float((samplers - trainers).abs().max())


def same_sums(a: Gradients, b: Gradients) -> str:
    """The names of weights whose sums differ."""
    other = [name for name, total in a.sums.items() if not torch.equal(total.sum, b.sums[name].sum)]
    return ", ".join(other[:3]) + (", …" if len(other) > 3 else "") if other else "none"


def run(work: Work, kernels: Kernels, dtype: torch.dtype, device: torch.device) -> Table:
    """Gap, packings and steps of one model."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    module = work.make().hf.to(dtype=dtype, device=device)
    rows: list[tuple[str, object]] = []
    torch.set_default_device(device)
    try:
        policy = Policy(module, kernels)
        masters = {name: t.float().clone() for name, t in policy.weights().items()}
        optimizer = torch.optim.AdamW(list(masters.values()), lr=LEARNING_RATE, foreach=True)
        began_s = time.perf_counter()
        found = sample(policy, work, device)
        tokens, differ, largest = gap(policy, found, device)
        rows += [
            ("sampled tokens", tokens),
            ("of these with another log-prob in the trainer", differ),
            ("largest difference", largest),
            ("seconds to sample and compare", time.perf_counter() - began_s),
        ]
        together = accumulate(policy, [found], device)
        alone = accumulate(policy, [[one] for one in reversed(found)], device)
        rows.append(("weights whose gradient depends on the packing", same_sums(together, alone)))
        ids = sum(len(one.ids) for one in found)
        for step in range(work.steps):
            began_s = time.perf_counter()
            means = accumulate(policy, [found], device).scaled(1.0 / tokens)
            for name, master in masters.items():
                master.grad = means[name]
            optimizer.step()
            policy.load_weights(masters)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began_s
            rows.append((f"step {step}: seconds for {ids:,} ids", seconds))
        if device.type == "cuda":
            rows.append(("GiB at the most", torch.cuda.max_memory_allocated() / 2**30))
    finally:
        torch.set_default_device(None)
    note = "The first step and the first sampling compile kernels for their shapes, unless an earlier part did."
    return Table(f"{work.name}, {str(dtype)[6:]}", ("", "found"), tuple(rows), note)  # type: ignore[arg-type]
