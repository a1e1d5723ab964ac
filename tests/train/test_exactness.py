"""The settings under which bits are promised."""

import threading

import numpy as np
import torch

from t1actors.train.critic_step import critic_step
from t1actors.train.exactness import exact
from tests.train.tiny_batches import TRAIN, batch_of, critic_state, tiny_policy


def settings():
    return torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()


def test_the_settings_hold_inside_the_block_and_are_put_back_after_it():
    before = settings()
    with exact():
        assert settings() == (1, True)
        with exact():
            pass
        assert settings() == (1, True)
    assert settings() == before


def test_a_block_that_ends_takes_nothing_from_one_that_goes_on_in_another_thread():
    before = settings()
    entered, leave = threading.Event(), threading.Event()

    def other():
        with exact():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with exact():
        thread.start()
        assert entered.wait(10)
    assert torch.are_deterministic_algorithms_enabled()  # the other thread's block is still open
    leave.set()
    thread.join()
    assert settings() == before


def test_two_steps_at_once_in_one_process_give_the_digests_of_one_after_the_other():
    policy = tiny_policy()
    batch = batch_of(policy)
    zero = np.zeros(batch.sampled, dtype=np.float32)
    alone = critic_step(*critic_state(policy), batch, zero, TRAIN, seed=0, step=0).report
    reports = []

    def run():
        reports.append(critic_step(*critic_state(policy), batch, zero, TRAIN, seed=0, step=0).report)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reports == [alone] * 3
