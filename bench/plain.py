"""The competitor: the same model through Hugging Face alone, as one would write it in an afternoon.

Nothing here uses this package's model, engine or training code. One torch thread, float32, ``grouped_mm`` experts and the
library's own attention, as on the other side.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig, Qwen3MoeForCausalLM, Qwen3MoeModel
from transformers.utils import logging as transformers_logging

from bench.workload import FOLDER, Episode
from t1actors.config import ActorConfig, CriticConfig
from t1actors.train.batch import Batch

PAD = 0
# The newest of the supported versions of the library renames the argument, the oldest does not know the new name.
warnings.filterwarnings("ignore", message="`past_key_values` is deprecated")


def load() -> Qwen3MoeForCausalLM:
    transformers_logging.disable_progress_bar()
    model = Qwen3MoeForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32, experts_implementation="grouped_mm", local_files_only=True
    )
    # A setting that a call leaves at None is filled in from here: without this, generation would stop at the first <|end|>.
    model.generation_config.eos_token_id = None
    return model.eval()


# --- sampling -----------------------------------------------------------------------------------------------------------


def left_padded(streams: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, attention mask), both (B, T)."""
    longest = max(len(stream) for stream in streams)
    ids_BT = torch.full((len(streams), longest), PAD)
    mask_BT = torch.zeros((len(streams), longest), dtype=torch.long)
    for row, stream in enumerate(streams):
        ids_BT[row, longest - len(stream) :] = torch.tensor(stream)
        mask_BT[row, longest - len(stream) :] = 1
    return ids_BT, mask_BT


def generate(model: Qwen3MoeForCausalLM, streams: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """``model.generate`` at temperature 1, exactly ``new_tokens`` for every stream."""
    ids_BT, mask_BT = left_padded(streams)
    settings = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=new_tokens, eos_token_id=None, pad_token_id=PAD, use_cache=True
    )
    with torch.inference_mode():
        out_BT = model.generate(ids_BT, attention_mask=mask_BT, generation_config=settings)
    new_BT = out_BT[:, ids_BT.shape[1] :]
    assert new_BT.shape[1] == new_tokens, f"{new_BT.shape[1]} new tokens where {new_tokens} were to be timed"
    return new_BT.tolist()


def bare_decode(model: Qwen3MoeForCausalLM, streams: Sequence[Sequence[int]], new_tokens: int) -> None:
    """The floor: nothing but batched forwards with a cache, the likeliest token fed back."""
    ids_BT, mask_BT = left_padded(streams)
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache()
    with torch.inference_mode():
        for _ in range(new_tokens):
            out = model(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=positions_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            ids_BT = out.logits[:, -1:].argmax(-1)
            mask_BT = torch.cat([mask_BT, torch.ones_like(ids_BT)], dim=1)
            positions_BT = positions_BT[:, -1:] + 1


def play(model: Qwen3MoeForCausalLM, episodes: Sequence[Episode], batch_size: int) -> None:
    """Episodes in static batches: a turn begins when all of the batch have ended theirs, and ``generate`` keeps nothing
    from one call to the next."""
    for first in range(0, len(episodes), batch_size):
        group = episodes[first : first + batch_size]
        streams: list[list[int]] = [[] for _ in group]
        for number in range(max(len(episode.turns) for episode in group)):
            live = [(e.turns[number], s) for e, s in zip(group, streams, strict=True) if number < len(e.turns)]
            for turn, stream in live:
                stream += turn.context
            sampled = generate(model, [s for _, s in live], max(turn.sampled for turn, _ in live))
            for (turn, stream), ids in zip(live, sampled, strict=True):
                stream += ids[: turn.sampled]


# --- training -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Padded:
    """Trajectories as padded tensors (B, T); ``target`` is what is learnt at a position: an advantage, a return."""

    ids_BT: torch.Tensor
    attention_BT: torch.Tensor
    mask_BT: torch.Tensor
    old_BT: torch.Tensor
    target_BT: torch.Tensor

    def at(self, places: Sequence[int]) -> Padded:
        """Some of the trajectories, padded to the longest of these."""
        rows = torch.tensor(places)
        longest = int(self.attention_BT[rows].sum(-1).max())
        tensors = (self.ids_BT, self.attention_BT, self.mask_BT, self.old_BT, self.target_BT)
        return Padded(*(tensor[rows, :longest] for tensor in tensors))


def padded(batch: Batch, target_T: np.ndarray) -> Padded:
    """The batch with the sampler's log-probs as old ones, and ``target_T`` at its sampled tokens."""
    longest = max(trial.ids for trial in batch.trials)
    size = (len(batch.trials), longest)
    made = Padded(
        torch.full(size, PAD),
        torch.zeros(size, dtype=torch.long),
        torch.zeros(size, dtype=torch.bool),
        torch.zeros(size),
        torch.zeros(size),
    )
    for row, trial in enumerate(batch.trials):
        (chunk,) = trial.chunks
        length = trial.ids
        made.ids_BT[row, :length] = torch.from_numpy(chunk.ids_N.astype(np.int64))
        made.attention_BT[row, :length] = 1
        made.mask_BT[row, :length] = torch.from_numpy(chunk.mask_N == 1)
        made.old_BT[row, :length] = torch.from_numpy(chunk.logprobs_N.copy())
        target = torch.from_numpy(target_T[trial.first : trial.first + trial.sampled].astype(np.float32))
        made.target_BT[row, :length][made.mask_BT[row, :length]] = target
    return made


def optimizer(parameters: Sequence[torch.nn.Parameter], config: ActorConfig | CriticConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters, config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, foreach=True
    )


def policy_logprobs(model: Qwen3MoeForCausalLM, part: Padded) -> torch.Tensor:
    """(B, T - 1): of every token but the first."""
    logits_BTV = model(input_ids=part.ids_BT, attention_mask=part.attention_BT, use_cache=False).logits[:, :-1]
    return logits_BTV.log_softmax(-1).gather(-1, part.ids_BT[:, 1:, None])[..., 0]


def policy_step(
    model: Qwen3MoeForCausalLM,
    opt: torch.optim.Optimizer,
    data: Padded,
    minibatches: Sequence[Sequence[int]],
    config: ActorConfig,
    *,
    old_pass: bool,
) -> None:
    """One PPO step. With ``old_pass`` the old log-probs are computed before the first update, as trainers do; without
    it the sampler's are taken."""
    parts = [data.at(places) for places in minibatches]
    olds = [part.old_BT[:, 1:] for part in parts]
    if old_pass:
        with torch.no_grad():
            olds = [policy_logprobs(model, part) for part in parts]
    for part, old_BT in zip(parts, olds, strict=True):
        ratio_BT = torch.exp(policy_logprobs(model, part) - old_BT)
        advantage_BT = part.target_BT[:, 1:]
        clipped_BT = ratio_BT.clamp(1 - config.clip, 1 + config.clip)
        loss_BT = -torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
        _update(opt, loss_BT[part.mask_BT[:, 1:]].mean(), config.gradient_clip)


class PlainCritic(torch.nn.Module):
    """The library's trunk and a linear head."""

    def __init__(self, trunk: Qwen3MoeModel) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = torch.nn.Linear(trunk.config.hidden_size, 1)

    def forward(self, part: Padded) -> torch.Tensor:
        out = self.trunk(input_ids=part.ids_BT, attention_mask=part.attention_BT, use_cache=False)
        return self.head(out.last_hidden_state)[:, :-1, 0]


def critic_step(
    critic: PlainCritic,
    opt: torch.optim.Optimizer,
    data: Padded,
    epochs: Sequence[Sequence[Sequence[int]]],
    config: CriticConfig,
) -> None:
    """Values of the whole batch, then the updates."""
    with torch.no_grad():
        for places in epochs[0]:
            critic(data.at(places))
    for minibatches in epochs:
        for places in minibatches:
            part = data.at(places)
            error_BT = (critic(part) - part.target_BT[:, 1:]) ** 2
            _update(opt, config.loss_scale * error_BT[part.mask_BT[:, 1:]].mean(), config.gradient_clip)


def _update(opt: torch.optim.Optimizer, loss: torch.Tensor, gradient_clip: float) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for group in opt.param_groups for p in group["params"]], gradient_clip)
    opt.step()
    opt.zero_grad(set_to_none=True)
