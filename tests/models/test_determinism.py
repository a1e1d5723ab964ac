import subprocess
import sys
from pathlib import Path

from tests.models.gradient_digest import digests


def test_forward_backward_and_weight_bytes_are_the_same_in_another_process():
    here = digests()
    assert digests() == here
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.models.gradient_digest"]
    there = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split()
    assert there == here
