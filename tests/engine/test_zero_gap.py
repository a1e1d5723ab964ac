"""The engine gap is 0: what the engine sampled in mixed batches, and what a trainer in another process computes from ids,
routing and weights alone, agree in every bit of every token."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from t1actors.engine import core as core_module
from t1actors.engine.cache import Slab
from t1actors.models.folder import model_folder
from t1actors.models.pretrained import load_policy, save_policy
from tests.engine.streams import Stream
from tests.engine.test_core import drive
from tests.engine.trainer_process import DTYPES, PACKINGS, PLANTED
from tests.models.small import small_policy

SEQUENCES, LIVE, PREFILL_IDS, TEMPERATURE = 16, 16, 40, 0.8


@dataclass(frozen=True)
class Sampled:
    """``slabs``: for every forward of the engine, the rows that each sequence had in it."""

    logprobs_T: np.ndarray
    slabs: list[list[int]]


@dataclass(frozen=True)
class Compared:
    """What engine and trainer said, by dtype and by the trainer's case."""

    sampled: dict[str, Sampled]
    trained: dict[str, np.ndarray]

    def differing(self, dtype: str, case: str) -> int:
        """Tokens whose log-prob differs in a bit."""
        there_T, here_T = self.trained[f"{dtype}, {case}"], self.sampled[dtype].logprobs_T
        assert there_T.shape == here_T.shape
        return int((there_T.view(np.uint32) != here_T.view(np.uint32)).sum())


def sample(folder: Path, dtype: str) -> Sampled:
    """Sequences of three turns at once through one engine; leaves ids, mask and routing in ``folder``."""
    slabs: list[list[int]] = []

    class Counted(Slab):
        def __init__(self, cache, chunks):
            super().__init__(cache, chunks)
            slabs.append([chunk.count for chunk in chunks])

    streams = [Stream(name=f"s{i}", seed=i, temperature=TEMPERATURE) for i in range(SEQUENCES)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "Slab", Counted)
        drive(streams, max_live=LIVE, prefill_ids=PREFILL_IDS, policy=load_policy(folder / "model", dtype=dtype))
    mask = np.concatenate([stream.mask for stream in streams]).astype(np.uint8)
    np.savez(
        folder / f"{dtype}.npz",
        ids=np.concatenate([stream.ids for stream in streams]).astype(np.int32),
        mask=mask,
        routing=np.concatenate([rows for stream in streams for rows in stream.routing]),
        lengths=np.array([len(stream.ids) for stream in streams]),
        temperature=TEMPERATURE,
    )
    logprobs = np.concatenate([stream.logprobs for stream in streams]).astype(np.float32)
    return Sampled(logprobs[mask == 1], slabs)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = Path(tmp_path_factory.mktemp("gap"))
    save_policy(small_policy(mlp_only_layers=[1]), folder / "model", model_folder("builtin:demo"))
    with torch.no_grad():
        sampled = {dtype: sample(folder, dtype) for dtype in DTYPES}
    subprocess.run([sys.executable, "-m", "tests.engine.trainer_process", str(folder)], check=True)
    with np.load(folder / "logprobs.npz") as trained:
        return Compared(sampled, dict(trained))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_engine_has_many_sequences_at_once_and_mixes_prefill_with_decode(compared: Compared, dtype: str) -> None:
    slabs = compared.sampled[dtype].slabs
    assert np.mean([len(slab) for slab in slabs]) >= 8
    mixed = sum(max(slab) > 1 and slab.count(1) >= 2 for slab in slabs)
    assert mixed >= len(slabs) / 4
    assert len(compared.sampled[dtype].logprobs_T) > 300


@pytest.mark.parametrize("case", [*PACKINGS, "free"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_token_of_the_sampler_differs_in_another_process(compared: Compared, dtype: str, case: str) -> None:
    """With recorded routing in three packings, and with routers that choose anew ("free")."""
    assert compared.differing(dtype, case) == 0


@pytest.mark.parametrize("operation", PLANTED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_ulp_in_one_kernel_of_the_trainer_is_seen(compared: Compared, dtype: str, operation: str) -> None:
    assert compared.differing(dtype, operation) > 0
