"""Every Python block runs as it stands, in a directory where a run has been made."""

import runpy
from pathlib import Path

import pytest
import torch
from t1kernels.triton_kernels import TritonUnavailable

from tests.docs.pages import Block, blocks
from tests.docs.treatments import on_the_recorded_run

SLOW = {"replayer.step(": "several steps are run again; tests/replay runs some"}
"""What a block of the second tier holds, and why it takes long."""


def marked(block: Block) -> object:
    marks = [pytest.mark.slow] if any(call in block.text for call in SLOW) else []
    return pytest.param(block, id=block.place.replace("/", "|"), marks=marks)


@pytest.mark.parametrize("block", [marked(block) for block in blocks("python")])
def test_the_block_runs(block: Block, workplace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(workplace)
    script = tmp_path / "block.py"
    script.write_text(on_the_recorded_run(block.text))
    if "triton_kernels()" in block.text and not torch.cuda.is_available():
        with pytest.raises(TritonUnavailable):  # as the block itself says
            runpy.run_path(str(script), run_name="__main__")
    else:
        runpy.run_path(str(script), run_name="__main__")
