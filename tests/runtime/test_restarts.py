"""When to start again: budget, backoff, jitter."""

import pytest

from t1actors.runtime.restarts import HEALTHY_S, WINDOW_S, Restarts


def test_delays_double_up_to_the_most_and_begin_anew_after_a_healthy_life():
    restarts = Restarts(budget=100, backoff_s=0.1, backoff_max_s=1.0)
    delays = [restarts.died(now_s=n, lived_s=0.5, chance=0.999999999) for n in range(6)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert restarts.died(now_s=50, lived_s=HEALTHY_S, chance=0.0) == pytest.approx(0.05)


def test_the_budget_counts_the_deaths_of_ten_minutes():
    restarts = Restarts(budget=3, backoff_s=0.1, backoff_max_s=1.0)
    assert all(restarts.died(now_s=float(n), lived_s=100, chance=0.5) is not None for n in range(3))
    assert restarts.died(now_s=WINDOW_S - 1, lived_s=100, chance=0.5) is None
    assert restarts.died(now_s=WINDOW_S + 0.5, lived_s=100, chance=0.5) is not None
    assert restarts.died(now_s=WINDOW_S + 0.6, lived_s=100, chance=0.5) is None


def test_a_budget_of_none_restarts_never():
    assert Restarts(budget=0, backoff_s=0.1, backoff_max_s=1.0).died(now_s=0.0, lived_s=1.0, chance=0.5) is None
