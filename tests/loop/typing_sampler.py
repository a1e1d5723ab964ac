"""A sampler whose model types: an engine that answers in the Terminus protocol, for runs of that harness.

What it answers is a function of what it is asked: the task's own solution (of every third trial the first half alone), after
an answer that can't be read in every second trial, and then twice that the task is complete.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from t1actors.actors.sampler import Sampler
from t1actors.config import Config
from t1actors.engine.interface import GenerateRequest, GenerateResult
from t1actors.events import VersionSpan
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer, train_tokenizer
from t1actors.runtime.actor import ActorContext
from t1actors.tasks.generate import make_named_task
from t1actors.tasks.pools import KINDS, pool_names
from t1actors.tito.record import Geometry
from t1actors.train.networks import initial_policy_state, policy_for, version_of

VOCABULARY = 512
TEXTS = (
    'You control a Linux terminal (tmux, 160 columns, 40 rows). Answer with one JSON object. "keystrokes" "duration"',
    '{"analysis": "", "plan": "", "commands": [{"keystrokes": "ls\\n", "duration": 0.3}], "task_complete": false}',
    "New terminal output:\nroot@sandbox:/app# echo hello > note.txt\nCurrent terminal screen:\n",
)


def make_typing_folder(folder: Path) -> Path:
    """A tiny policy of random weights with a window that the protocol fits into."""
    import torch
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM

    from t1actors.models.demo import tiny_config

    train_tokenizer(TEXTS * 20, VOCABULARY).save(folder)
    config = tiny_config(vocabulary=VOCABULARY)
    config.max_position_embeddings = 4096
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


class TypingEngine:
    """An ``Engine`` without a model."""

    def __init__(self, context: ActorContext) -> None:
        folder = model_folder(context.config.model.policy)
        self.name = context.name
        self.version = initial_version(context.config)
        self._tokenizer = Tokenizer.from_folder(folder)
        self._geometry = Geometry.of_model_config((folder / "config.json").read_bytes())
        names = [name for kind in KINDS for name in pool_names(context.config.tasks, kind)]
        self._solutions = {task.instruction: task.solution for task in map(make_named_task, names)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        sampled = (*self._tokenizer.encode(self._answer(request)), request.stop_ids[0])
        assert len(sampled) <= request.max_new_tokens, request
        geometry = self._geometry
        rows = len(request.ids) + len(sampled) - 1 - request.known_rows
        experts = np.arange(rows * geometry.layers).reshape(rows, geometry.layers, 1) + np.arange(geometry.top_k)
        return GenerateResult(
            request_id=request.request_id,
            sampled_ids=sampled,
            logprobs=np.full(len(sampled), -1.0, np.float32),
            routing_RLK=(experts % geometry.experts).astype(np.uint8),
            versions=(VersionSpan(version=self.version, start=0, end=len(sampled)),),
            finish="stop",
            entropy_mean=0.0,
            queue_s=0.0,
            prefill_s=0.0,
            decode_s=0.0,
        )

    async def load(
        self, version: str, weights: bytes | memoryview, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.version = version

    async def release(self, sequence: str) -> None: ...

    async def quiesced(self) -> None: ...

    def _answer(self, request: GenerateRequest) -> str:
        trial = int(request.sequence.rpartition("t")[2])
        marks = self._tokenizer.special
        turn = request.ids.count(marks.assistant) - 1
        told = self._tokenizer.decode(request.ids[1 : request.ids.index(marks.end)])
        instruction = told.partition("\nTask:\n")[2].partition("\n\nCurrent terminal screen:\n")[0]
        if trial % 2:
            if turn == 0:
                return "Let me see."
            turn -= 1
        solution = self._solutions[instruction]
        if trial % 3 == 0:
            solution = solution[: len(solution) // 2]
        commands = [{"keystrokes": line + "\n", "duration": 0.3} for line in solution] if turn == 0 else []
        return json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": turn > 0})


def initial_version(config: Config) -> str:
    """The digest of the weights that the run begins with."""
    state = initial_policy_state(config.model)
    return version_of(policy_for(state, config.model), state)


def make(context: ActorContext) -> Sampler:
    """The actor's factory."""
    return Sampler(context, TypingEngine)
