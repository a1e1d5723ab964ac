"""Makes the warm start that ships with the package: a tiny policy that has seen noisy demonstrations.

Guarantees: the folder is a function of (demonstrations, configuration) on one machine; demonstrations are turned into ids by
the harness that a rollout uses, and the shipped policy is a plain Hugging Face folder. It leaves headroom on purpose: every
second sub-goal was demonstrated wrong and a quarter of the demonstrations stop early at each sub-goal, so a sampled policy
does some two fifths of its tasks' work and reinforcement learning has something to find.

The corpus of demonstrations is made by ``demonstrate`` in real sandboxes; it ships compressed, so ``make`` needs none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import torch

from t1actors.harness.native import NativeHarness, observation_text
from t1actors.models.demo import VOCABULARY, tiny_config
from t1actors.models.policy import Policy, new_policy
from t1actors.models.pretrained import save_policy
from t1actors.models.tokenizer import SPECIAL_TOKENS, Tokenizer, train_tokenizer
from t1actors.sandbox.interface import Limits, SandboxBackend
from t1actors.tasks.demos import Demonstration, read_demonstrations, record_demonstrations, write_demonstrations
from t1actors.tasks.pools import DEMONSTRATION_SEED, builtin_names
from t1actors.train import sft
from t1actors.train.sft import CopyMarks, Example, SftConfig, SftProgress

CORPUS = "demonstrations.jsonl.gz"


@dataclass(frozen=True)
class WarmstartConfig:
    """What a warm start is made from."""

    seed: int = 0
    demonstrations: int = 6000
    levels: tuple[int, ...] = (1, 2, 3)
    wrong_share: float = 0.5
    stop_share: float = 0.25
    observation_chars: int = 60
    training: SftConfig = field(default_factory=SftConfig)


async def demonstrate(
    backend: SandboxBackend,
    path: Path,
    config: WarmstartConfig,
    *,
    parallel: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Execute the demonstrations in ``backend`` and write the corpus to ``path``. Raises ``SandboxError``."""
    recorded = await record_demonstrations(
        backend,
        builtin_names(config.levels, config.demonstrations, DEMONSTRATION_SEED),
        seed=config.seed,
        wrong_share=config.wrong_share,
        stop_share=config.stop_share,
        observe=observation_text,
        observation_chars=config.observation_chars,
        limits=Limits(),
        parallel=parallel,
        progress=progress,
    )
    write_demonstrations(path, recorded)


def shipped_corpus() -> Path:
    """The demonstrations that the shipped policy was made from."""
    return Path(str(resources.files("t1actors").joinpath("assets", "demos", CORPUS)))


def make(
    folder: Path,
    demonstrations: Iterable[Demonstration],
    config: WarmstartConfig,
    *,
    on_progress: Callable[[SftProgress], None] | None = None,
) -> Policy:
    """Train a tokenizer and a policy on ``demonstrations`` and write them to ``folder``."""
    shown = list(demonstrations)
    tokenizer = train_tokenizer(_texts(shown), VOCABULARY)
    policy = initial_policy(config.seed)
    harness = NativeHarness(tokenizer)
    special = tokenizer.special
    marks = CopyMarks(
        user=special.user,
        assistant=special.assistant,
        end=special.end,
        first_ordinary=len(SPECIAL_TOKENS),
        vocabulary=tokenizer.vocabulary,
    )
    examples = [example_of(demonstration, harness, tokenizer) for demonstration in shown]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the weights are a function of the inputs on one thread
    try:
        sft.train(policy.hf, examples, marks, config.training, on_progress=on_progress)
    finally:
        torch.set_num_threads(threads)
    save_policy(policy, folder, tokenizer)
    return policy


def make_shipped(folder: Path, *, on_progress: Callable[[SftProgress], None] | None = None) -> Policy:
    """The shipped policy again, from the shipped corpus."""
    return make(folder, read_demonstrations(shipped_corpus()), WarmstartConfig(), on_progress=on_progress)


def initial_policy(seed: int) -> Policy:
    """The tiny model before training.

    Hugging Face's default (0.02 everywhere) is meant for wide models. Here every projection keeps its input's scale, blocks
    write half of it to the residual stream, and the tied embedding and the last norm share the scale h^-1/2 of the logits
    evenly, so that one learning rate suits both the embedding's size in the stream and its use as a head.
    """
    policy = new_policy(tiny_config(), seed=seed)
    config = policy.hf.config
    shared = config.hidden_size**-0.25
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(policy.hf.named_parameters()):
            if name.endswith("embed_tokens.weight"):
                parameter.normal_(std=shared, generator=draw)
            elif name == "model.norm.weight":
                parameter.fill_(shared)
            elif name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                std = 1 / math.sqrt(parameter.shape[-1])
                writes = name.endswith(("o_proj.weight", "down_proj"))
                parameter.normal_(std=0.5 * shared * std if writes else std, generator=draw)
    return policy


def example_of(demonstration: Demonstration, harness: NativeHarness, tokenizer: Tokenizer) -> Example:
    """The demonstration as the stream of ids that a rollout of it would have left."""
    ids: list[int] = list(harness.opening(demonstration.instruction))
    sampled = [False] * len(ids)
    for turn, command in enumerate(demonstration.commands):
        said = [*tokenizer.encode(command), tokenizer.special.end]
        ids += said
        sampled += [True] * len(said)
        if turn < len(demonstration.observations):
            context = harness.observation(demonstration.observations[turn])
            ids += context
            sampled += [False] * len(context)
    return Example(ids=tuple(ids), sampled=tuple(sampled))


def _texts(demonstrations: Sequence[Demonstration]) -> list[str]:
    return [text for d in demonstrations for text in (d.instruction, *d.commands, *d.observations)]
