import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bench import gpu


def test_without_a_gpu_the_command_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(sys, "argv", ["bench.gpu"])
    gpu.main()
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "nothing was measured" in said


def test_a_floor_is_what_takes_longer_bytes_or_flops():
    peaks = gpu.Peaks(bandwidth=4e12, rate=8e14)
    assert peaks.floor_s(4e12, 1) == (1.0, "bytes")
    assert peaks.floor_s(1, 16e14) == (2.0, "FLOPs")


def test_a_part_that_fails_is_a_table_that_says_why(tmp_path: Path):
    found = gpu.Running(gpu.Part("contract-nonsense float32", 100), tmp_path, 100).tables()
    (table,) = found["tables"]
    assert table["rows"][0]["found"] == "ended with 1"
    assert "KeyError: 'nonsense'" in table["rows"][1]["found"]


def test_a_part_that_hangs_is_ended(tmp_path: Path):
    found = gpu.Running(gpu.Part("nonsense float32", 100), tmp_path, 0.2).tables()
    assert found["tables"][0]["rows"][0]["found"] == "not done within 0 s"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="kernels triton are not here: triton is not installed")
def test_every_kernel_compiles_for_a_hopper_gpu_within_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    into = tmp_path / "compiled.json"
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--compile", "--json", str(into)])
    gpu.main()
    rows = json.loads(into.read_text())["tables"][0]["rows"]
    assert {row["kernel"] for row in rows} >= {"product_kernel", "attend_kernel", "weight_gradient_kernel"}
    for row in rows:
        assert row["shared memory"] <= 232_448, row
        assert row["stack"] == 0 or row["first argument"] == "float32", row  # spilled registers
    products = {row["tensor cores"] for row in rows if row["kernel"] in ("product_kernel", "softmax_of_hidden_kernel")
                and row["first argument"] == "bfloat16"}  # fmt: skip
    assert len(products) == 1, "logits of the sampler and of the trainer are made by different instructions"
