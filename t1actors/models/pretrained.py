"""Policies from and to Hugging Face folders.

Guarantees: ``load_policy`` refuses what ``folder.check_folder`` refuses before it loads anything; what
``save_policy`` writes is loaded by ``Qwen3MoeForCausalLM.from_pretrained`` and ``AutoTokenizer.from_pretrained``,
with the same weights and ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import torch
from t1kernels.interface import Kernels
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM
from transformers.utils import logging as transformers_logging

from t1actors.models.construction import constructing
from t1actors.models.folder import check_folder
from t1actors.models.policy import Policy
from t1actors.models.tokenizer import Tokenizer, copy_tokenizer

DtypeName = Literal["float32", "bfloat16"]


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def load_policy(folder: Path, *, dtype: DtypeName = "float32", kernels: Kernels | None = None) -> Policy:
    """The policy in a Hugging Face folder, on the CPU. Raises ``PolicyUnsupported``."""
    check_folder(folder)
    with constructing, _without_progress_bars():
        module = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
    module = cast(Qwen3MoeForCausalLM, module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.data = (
                parameter.data.clone()
            )  # own aligned memory, not a mapped file's: alignment can change bits
    module.tie_weights()
    return Policy(module, kernels)


def save_policy(policy: Policy, folder: Path, tokenizer: Tokenizer | Path) -> None:
    """Write a Hugging Face folder: configuration, safetensors, tokenizer (of another such folder: its files, as they
    are)."""
    with _without_progress_bars():
        policy.hf.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)  # the safetensors library writes them for the owner alone
    if isinstance(tokenizer, Tokenizer):
        tokenizer.save(folder)
    else:
        copy_tokenizer(tokenizer, folder)
