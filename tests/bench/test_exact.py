"""The cost of exactness: what it compares computes the same, its verdicts, and the memory of log-probs."""

import argparse
import json
import time

import pytest
import torch
from t1kernels.interface import Kernels

from bench import exact, exact_work
from bench.exact_memory import full_logits, peak_bytes, selected_logprobs
from bench.exact_profile import REST, Clocks, profile
from bench.measure import Sample
from bench.stock_kernels import StockKernels
from bench.tables import conclude
from t1actors.models.policy import Policy
from tests.kernels.implementations import fastest, implementation
from tests.models.small import packed_gradients, random_ids, small_policy

ROWS, HIDDEN, VOCABULARY = 128, 16, 20_000
LENGTHS = [70, 1, 70, 9]


@pytest.mark.parametrize("name", ["native", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_and_their_gradients_never_hold_a_tenth_of_the_logits(name: str, dtype: torch.dtype):
    peaks = selected_logprobs(implementation(name), ROWS, HIDDEN, VOCABULARY, dtype)
    tenth = ROWS * VOCABULARY * 4 / 10
    assert 0 < peaks.forward < tenth
    assert 0 < peaks.backward < tenth


def test_the_measure_of_memory_sees_the_logits_where_they_are():
    logits = ROWS * VOCABULARY * 4
    peaks = full_logits(ROWS, HIDDEN, VOCABULARY, torch.float32)
    assert min(peaks.forward, peaks.backward) >= logits
    assert peak_bytes(lambda: (torch.empty(1000), torch.empty(3000))) == 16_000
    assert peak_bytes(lambda: [torch.empty(1000).shape, torch.empty(3000).shape]) == 12_000


def computed(policy: Policy, kernels: Kernels) -> list[torch.Tensor]:
    """Log-probs and the gradients of all weights, in a packed batch."""
    made = exact_work.on(policy, kernels)
    found = packed_gradients(made, random_ids(sum(LENGTHS)), LENGTHS)
    return [t for part in found for t in (part.values() if isinstance(part, dict) else [part])]


def test_stock_operations_compute_what_the_exact_kernels_compute():
    policy = small_policy()
    for stock, right in zip(computed(policy, StockKernels()), computed(policy, fastest()), strict=True):
        torch.testing.assert_close(stock.double(), right.double(), atol=1e-4, rtol=1e-3)


def test_decode_with_stock_operations_attends_to_what_the_engine_has_stored():
    policy = exact_work.model(64, 1, torch.float32)
    ids = exact_work.ids(policy.shape.vocabulary, 3, 70)
    for make in (StockKernels, fastest):
        exact_work.decode(exact_work.on(policy, make()), ids, 2, 1)()
    whole = policy.forward_packed(ids.reshape(-1), [70] * 3).hidden_NH
    assert torch.isfinite(whole).all()


def measured(seconds: dict[str, float], hidden: int) -> exact.Measured:
    samples = {name: [Sample(9.0, s), Sample(9.0, 2 * s)] for name, s in seconds.items()}
    return exact.Measured("forward", exact.QUICK[0], hidden, 1, "eager", samples)


def test_a_target_is_judged_against_the_faster_stock_column_from_hidden_512_on():
    seconds = {exact.HUGGING_FACE: 1.0, exact.STOCK: 2.0, "native": 1.2, "padded": 1.5}
    wide = measured(seconds, 512)
    assert wide.ratio("padded").median == pytest.approx(1.5)
    assert exact.verdict(wide, ["native", "padded"]) == "native met; padded **missed**"
    assert exact.verdict(measured(seconds, 256), ["native", "padded"]) == ""


def test_a_clock_within_a_clock_takes_its_time_from_the_outer_one():
    clocks = Clocks()

    def busy(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    def run() -> None:
        busy(0.01)
        clocks.timing("inner", busy)(0.03)

    found = profile(clocks, run, times=1, optimizer=False)
    assert list(found) == ["inner", REST]
    assert found["inner"] >= 0.03
    assert found[REST] >= 0.01


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_it_runs_to_its_end_on_tiny_sizes_and_explains_what_it_misses(monkeypatch, tmp_path):
    name = fastest().name.split("/")[0]
    monkeypatch.setattr(exact, "IMPLEMENTATIONS", {name: exact.IMPLEMENTATIONS[name]})
    monkeypatch.setattr(exact, "TARGET_FROM", 0)
    monkeypatch.setattr(exact, "KINDS", dict.fromkeys(exact.KINDS, 1e-9))
    path = tmp_path / "found.json"
    conclude("exact", argparse.Namespace(json=path, quick=True), lambda: exact.run(exact.QUICK))
    tables = {table["title"]: table["rows"] for table in json.loads(path.read_text())["tables"]}
    assert sum(title.startswith("Cost of exactness") for title in tables) == 4
    profiles = [rows for title, rows in tables.items() if title.startswith("Where the time goes")]
    assert len(profiles) == 1
    for rows in profiles:
        assert rows[0]["operation"] == "all"
        assert sum(row["% of it"] for row in rows[1:]) == pytest.approx(100, abs=5)
    memory = tables["Memory of log-probs"]
    assert {row["below 0.1"] for row in memory} == {"", "met"}
