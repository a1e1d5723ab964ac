"""Supervised warm start: a policy learns the shape of the work from executed demonstrations.

Guarantees: the trained weights are a function of (initial weights, examples, configuration) on one thread; every
example is seen through the ids that the harness would produce, and the loss is spent on the tokens a policy samples
(the context gets a small weight, which teaches it the language of tasks and observations).

A model this small does not learn to copy names from its instruction by demonstrations alone, so the first steps mix
in a copy curriculum: random ids to be repeated from the start or from an anchor in the middle. The load-balancing
term keeps all experts in use; it belongs to the warm start only (in reinforcement learning it would fight the
replayed routing).

Where demonstrations come from is ``tasks.demos``; what is shipped is made by ``train.warmstart``.

Shapes: B sequences, T ids of the longest, P predicting positions inside the batch's sequences, V vocabulary, E experts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import Qwen3MoeForCausalLM


@dataclass(frozen=True)
class Example:
    """A token stream; ``sampled`` marks the ids that a policy would have sampled."""

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]


@dataclass(frozen=True)
class SftConfig:
    """How the warm start is trained."""

    seed: int = 0
    steps: int = 1200
    sequences: int = 24
    learning_rate: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.05
    rate_warmup_steps: int = 40
    rate_decay_share: float = 0.3
    """The rate falls linearly to nothing over this last share of the steps."""
    context_weight: float = 0.05
    balance_weight: float = 0.01
    copy_steps: int = 500
    copy_share: float = 0.5
    gradient_clip: float = 1.0


@dataclass(frozen=True)
class SftProgress:
    """Where it is."""

    step: int
    loss: float
    """Cross-entropy of the demonstrations' sampled tokens; copy exercises apart."""
    copy_loss: float
    balance: float
    """1 when the experts share the load equally, up to E when one takes all."""


@dataclass(frozen=True)
class CopyMarks:
    """The ids that frame a copy exercise, and the first ordinary id of the vocabulary."""

    user: int
    assistant: int
    end: int
    first_ordinary: int
    vocabulary: int


def train(
    model: Qwen3MoeForCausalLM,
    examples: Sequence[Example],
    marks: CopyMarks,
    config: SftConfig,
    *,
    on_progress: Callable[[SftProgress], None] | None = None,
) -> None:
    """Trains ``model`` in place. Through torch's own autograd: what comes of it is shipped as weights, and no run
    replays it."""
    model.requires_grad_(True)
    draw = random.Random(config.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, foreach=True
    )
    model.train()
    pool: list[list[Example]] = []
    for step in range(config.steps):
        if not pool:
            pool = _batches(examples, config.sequences, draw)
        batch = pool.pop()
        copies = int(config.sequences * config.copy_share) if step < config.copy_steps else 0
        exercises = [copy_exercise(marks, draw) for _ in range(copies)]
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * _rate(step, config)
        kept = draw.sample(batch, len(batch) - copies)
        loss, progress = _loss(model, exercises + kept, copies, config, step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_progress is not None:
            on_progress(progress)
    model.requires_grad_(False)
    model.eval()


def _rate(step: int, config: SftConfig) -> float:
    rise = min(1.0, (step + 1) / max(1, config.rate_warmup_steps))
    fall = min(1.0, max(0.03, (1 - step / config.steps) / config.rate_decay_share))
    return rise * fall


def _batches(examples: Sequence[Example], size: int, draw: random.Random) -> list[list[Example]]:
    """Four batches at a time, of similar lengths within a batch: padding is most of the cost otherwise."""
    chosen = sorted(draw.sample(range(len(examples)), min(4 * size, len(examples))), key=lambda i: len(examples[i].ids))
    batches = [[examples[i] for i in chosen[at : at + size]] for at in range(0, len(chosen) - size + 1, size)]
    draw.shuffle(batches)
    return batches


def copy_exercise(marks: CopyMarks, draw: random.Random) -> Example:
    """Repeat the message; half of the time only from an anchor on, whose first id is given."""
    words = [draw.randrange(marks.first_ordinary, marks.vocabulary) for _ in range(draw.randint(6, 28))]
    anchor = draw.randint(0, len(words) // 2) if draw.random() < 0.5 else 0
    ids = (marks.user, *words, marks.end, marks.assistant, *words[anchor:], marks.end)
    given = len(words) + 3 + (1 if anchor else 0)
    return Example(ids=ids, sampled=tuple(j >= given for j in range(len(ids))))


def _loss(
    model: Qwen3MoeForCausalLM, batch: Sequence[Example], copies: int, config: SftConfig, step: int
) -> tuple[torch.Tensor, SftProgress]:
    longest = max(len(e.ids) for e in batch)
    ids_BT = torch.zeros(len(batch), longest, dtype=torch.long)
    sampled_BT = torch.zeros(len(batch), longest, dtype=torch.bool)
    inside_BT = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, example in enumerate(batch):
        length = len(example.ids)
        ids_BT[row, :length] = torch.tensor(example.ids)
        sampled_BT[row, :length] = torch.tensor(example.sampled)
        inside_BT[row, :length] = True
    predicting_BT = inside_BT[:, 1:]
    # Padding lies to the right of everything that attends, so the causal mask alone is enough.
    out = model.model(input_ids=ids_BT[:, :-1], use_cache=False, output_router_logits=True)
    hidden_PH = out.last_hidden_state[predicting_BT]
    targets_P = ids_BT[:, 1:][predicting_BT]
    sampled_P = sampled_BT[:, 1:][predicting_BT]
    losses_P = F.cross_entropy(model.lm_head(hidden_PH), targets_P, reduction="none")
    weights_P = torch.where(sampled_P, 1.0, config.context_weight)
    balance = _balance(out.router_logits, predicting_BT.reshape(-1), model.config.num_experts_per_tok)
    loss = (losses_P * weights_P).sum() / weights_P.sum() + config.balance_weight * balance * len(out.router_logits)
    with torch.no_grad():
        row_P = torch.arange(len(batch))[:, None].expand(-1, longest - 1)[predicting_BT]
        demos_P, copies_P = sampled_P & (row_P >= copies), sampled_P & (row_P < copies)
        progress = SftProgress(
            step=step,
            loss=float(losses_P[demos_P].mean()),
            copy_loss=float(losses_P[copies_P].mean()) if copies else 0.0,
            balance=float(balance),
        )
    return loss, progress


def _balance(router_logits: Sequence[torch.Tensor], inside: torch.Tensor, top_k: int) -> torch.Tensor:
    """Mean over layers of E sum_e share_e p_e: share of the top-k choices, p the mean router probability."""
    terms: list[torch.Tensor] = []
    for logits in router_logits:
        probabilities_PE = logits.reshape(-1, logits.shape[-1])[inside].float().softmax(-1)
        chosen_PK = probabilities_PE.topk(top_k, -1).indices
        experts = probabilities_PE.shape[-1]
        share_E = torch.bincount(chosen_PK.reshape(-1), minlength=experts).to(torch.float32) / chosen_PK.numel()
        terms.append(experts * (share_E * probabilities_PE.mean(0)).sum())
    return torch.stack(terms).mean()
