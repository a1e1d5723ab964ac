"""What `bench.exact` times: the same model, sequences and optimizer through this package's forward (with any kernels) and
through Hugging Face's module.

Hugging Face's side is as fast as its settings allow: sdpa attention, the faster of its two experts implementations (tried
first), sequences of one length so that nothing is padded and no mask is made, torch's foreach AdamW, in bfloat16 without
float32 masters. Routers choose on both sides.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from t1kernels.interface import Kernels
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

from bench.measure import timed
from t1actors.config import ActorConfig
from t1actors.engine.core import EngineCore, Job
from t1actors.engine.interface import GenerateRequest
from t1actors.models.policy import Policy, new_policy
from t1actors.train.exactness import exact
from t1actors.train.networks import fresh_state
from t1actors.train.trainer import Trainer

HEAD_WIDTH = 64
EXPERTS, CHOSEN = 8, 2
EXPERTS_IMPLEMENTATIONS = ("grouped_mm", "eager")
CONFIG = ActorConfig(learning_rate=1e-6)
# The newest of the supported versions of the library renames the argument, the oldest does not know the new name.
warnings.filterwarnings("ignore", message="`past_key_values` is deprecated")


def model(hidden: int, layers: int, dtype: torch.dtype) -> Policy:
    """Proportions of Qwen3-30B-A3B: experts of 3/8 of the width, four query heads a key head, a head that takes a quarter of
    the multiply-adds of a token (there: 48 layers, a vocabulary of 74 widths; here: 1.5 widths a layer)."""
    heads = max(2, hidden // HEAD_WIDTH)
    config = Qwen3MoeConfig(
        vocab_size=hidden * layers * 3 // 2,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        moe_intermediate_size=hidden * 3 // 8,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        head_dim=HEAD_WIDTH,  # type: ignore[call-arg]  (an attribute of the architecture, not of the dataclass)
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        router_aux_loss_coef=0.0,
    )
    return new_policy(config, seed=0, dtype=dtype)


def ids(vocabulary: int, sequences: int, length: int) -> Tensor:
    """(B, T) of any words."""
    return torch.randint(0, vocabulary, (sequences, length), generator=torch.Generator().manual_seed(0))


# --- this package -------------------------------------------------------------------------------------------------------


def on(policy: Policy, kernels: Kernels) -> Policy:
    """The same module with other kernels."""
    return Policy(policy.hf, kernels)


def forward(policy: Policy, ids_BT: Tensor) -> Callable[[], None]:
    """Packed prefill: the final hidden states of all rows, logits of each sequence's last."""
    lengths = [ids_BT.shape[1]] * ids_BT.shape[0]
    last_B = torch.arange(1, ids_BT.shape[0] + 1) * ids_BT.shape[1] - 1
    ids_N = ids_BT.reshape(-1)

    def run() -> None:
        with torch.inference_mode():
            policy.logits(policy.forward_packed(ids_N, lengths).hidden_NH.index_select(0, last_B))

    return run


def decode(policy: Policy, ids_BT: Tensor, new_tokens: int, calls: int) -> Callable[[], None]:
    """The engine's loop. All prompts are prefilled here, in one slab; each of at most ``calls`` calls then makes
    ``new_tokens`` of every sequence."""
    sequences, length = ids_BT.shape
    most = 1 + new_tokens * (calls + 1)
    core = EngineCore(
        policy, max_live_sequences=sequences, max_ids=length + most, prefill_ids=sequences * (length - 1) + 1
    )
    for number, prompt in enumerate(ids_BT.tolist()):
        request = GenerateRequest(
            request_id=f"{number}", sequence=f"{number}", ids=tuple(prompt), max_new_tokens=most, temperature=1.0,
            seed=number, stop_ids=(), known_rows=0,
        )  # fmt: skip
        core.submit(Job(request, submitted_s=time.perf_counter()))

    def run() -> None:
        for _ in range(new_tokens):
            core.step()

    core.step()
    return run


@dataclass
class Stepping:
    """Steps of training on the same sequences: log-probs of every token but the first, gradients, norm, clip, AdamW."""

    policy: Policy
    ids_BT: Tensor

    def __post_init__(self) -> None:
        self.trainer = Trainer(self.policy, fresh_state(self.policy), CONFIG, what="bench")
        self._lengths = [self.ids_BT.shape[1] - 1] * self.ids_BT.shape[0]
        self._ids_N = self.ids_BT[:, :-1].reshape(-1)
        self._targets_N = self.ids_BT[:, 1:].reshape(-1)

    def forward(self) -> Tensor:
        """The losses."""
        sums = self.trainer.sums
        forwarded = self.policy.forward_packed(self._ids_N, self._lengths, gradients=sums)
        return -self.policy.logprobs(forwarded.hidden_NH, self._targets_N, temperature=1.0, gradients=sums)[0]

    def __call__(self) -> None:
        with exact():
            self.trainer.begin(self._targets_N.shape[0])
            self.trainer.backward(self.forward())
            self.trainer.apply()


# --- Hugging Face -------------------------------------------------------------------------------------------------------


def fastest(module: Qwen3MoeForCausalLM, make: Callable[[], Callable[[], None]]) -> tuple[str, Callable[[], None]]:
    """The faster experts implementation for this work, in force whenever the work is run."""
    found: dict[str, tuple[float, Callable[[], None]]] = {}
    for name in EXPERTS_IMPLEMENTATIONS:
        module.set_experts_implementation(name)
        run = make()
        took_s = timed(run).cpu_s
        if took_s < 1.0:  # else its first time tells enough
            took_s = timed(run).cpu_s
        found[name] = took_s, run
    best = min(found, key=lambda name: found[name][0])
    run = found[best][1]

    def with_it() -> None:
        module.set_experts_implementation(best)
        run()

    return best, with_it


def hf_forward(module: Qwen3MoeForCausalLM, ids_BT: Tensor) -> Callable[[], None]:
    """As ``forward``."""

    def run() -> None:
        with torch.inference_mode():
            module(input_ids=ids_BT, use_cache=False, logits_to_keep=1)

    return run


def hf_decode(module: Qwen3MoeForCausalLM, ids_BT: Tensor, new_tokens: int) -> Callable[[], None]:
    """As ``decode``: batched, a cache, one draw at temperature 1 and its log-prob."""
    cache = DynamicCache(config=module.config)
    with torch.inference_mode():
        module(input_ids=ids_BT[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
    last_B1 = ids_BT[:, -1:]

    def run() -> None:
        nonlocal last_B1
        with torch.inference_mode():
            for _ in range(new_tokens):
                logits_BV = module(input_ids=last_B1, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
                    :, -1
                ]
                logs_BV = logits_BV.float().log_softmax(-1)
                last_B1 = torch.multinomial(logs_BV.exp(), 1)
                logs_BV.gather(1, last_B1)

    return run


def hf_step(module: Qwen3MoeForCausalLM, ids_BT: Tensor) -> Callable[[], None]:
    """As ``Stepping``."""
    module.requires_grad_(True)
    optimizer = torch.optim.AdamW(
        module.parameters(), CONFIG.learning_rate, betas=CONFIG.betas, weight_decay=CONFIG.weight_decay, foreach=True
    )
    targets_N = ids_BT[:, 1:].reshape(-1)

    def run() -> None:
        logits_NV = module(input_ids=ids_BT[:, :-1], use_cache=False).logits.flatten(0, 1)
        functional.cross_entropy(logits_NV.float(), targets_N).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CONFIG.gradient_clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run
