"""The warm start: what it trains on, that it is a function of its inputs, and what ships with the package."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from t1actors.config import resolve
from t1actors.harness.native import NativeHarness
from t1actors.models.demo import VOCABULARY
from t1actors.models.folder import model_folder
from t1actors.models.pretrained import load_policy
from t1actors.models.tokenizer import Tokenizer
from t1actors.tasks.demos import Demonstration, read_demonstrations
from t1actors.tasks.generate import parse_name
from t1actors.tasks.pools import KINDS, pool_names
from t1actors.train import sft, warmstart
from t1actors.train.sft import CopyMarks, SftConfig

DEMONSTRATIONS = [
    Demonstration(
        task=f"l1-{i}",
        level=1,
        instruction=f"1 make dir {a}\n2 write {b} to {a}.txt",
        commands=(f"mkdir {a}", f"echo {b} > {a}.txt", "submit"),
        observations=("rc 0", "rc 0"),
        passed=5,
        expected=5,
    )
    for i, (a, b) in enumerate([("bago", "fidu"), ("kole", "mina"), ("rusa", "tepo"), ("vizo", "zula")] * 12)
]
SHORT = SftConfig(steps=3, sequences=4, copy_steps=1, rate_warmup_steps=1)


def test_a_demonstration_becomes_the_stream_that_a_rollout_leaves():
    tokenizer = Tokenizer.from_folder(model_folder("builtin:demo"))
    harness = NativeHarness(tokenizer)
    example = warmstart.example_of(DEMONSTRATIONS[0], harness, tokenizer)
    assert tokenizer.decode(example.ids) == (
        "<|user|>1 make dir bago\n2 write fidu to bago.txt<|end|><|assistant|>mkdir bago<|end|><|tool|>rc 0<|end|>"
        "<|assistant|>echo fidu > bago.txt<|end|><|tool|>rc 0<|end|><|assistant|>submit<|end|>"
    )
    said = [token for token, sampled in zip(example.ids, example.sampled, strict=True) if sampled]
    assert tokenizer.decode(said) == "mkdir bago<|end|>echo fidu > bago.txt<|end|>submit<|end|>"


def test_a_copy_exercise_asks_only_for_what_its_message_and_anchor_decide():
    marks = CopyMarks(user=1, assistant=2, end=4, first_ordinary=5, vocabulary=40)
    draw = random.Random(0)
    anchored = 0
    for _ in range(200):
        exercise = sft.copy_exercise(marks, draw)
        at = exercise.ids.index(marks.assistant)
        message, answer = list(exercise.ids[1 : at - 1]), list(exercise.ids[at + 1 : -1])
        assert message[len(message) - len(answer) :] == answer
        given = exercise.sampled.index(True) - at - 1
        anchored += given
        assert given == (0 if len(answer) == len(message) else 1)
        assert all(exercise.sampled[at + 1 + given :])
        assert not any(exercise.sampled[: at + 1])
    assert 40 < anchored < 140


def test_the_weights_are_a_function_of_demonstrations_and_seed(tmp_path):
    def digest(name: str, seed: int) -> str:
        config = warmstart.WarmstartConfig(seed=seed, training=replace(SHORT, seed=seed))
        return warmstart.make(tmp_path / name, DEMONSTRATIONS, config).digest()

    first = digest("a", 0)
    assert digest("b", 0) == first
    assert digest("c", 1) != first
    assert load_policy(tmp_path / "a").digest() == first


def test_training_lowers_the_loss_of_the_demonstrated_commands(tmp_path):
    losses: list[float] = []
    config = warmstart.WarmstartConfig(training=replace(SHORT, steps=30, copy_steps=0))
    warmstart.make(tmp_path, DEMONSTRATIONS, config, on_progress=lambda p: losses.append(p.loss))
    assert len(losses) == 30
    assert losses[-1] < 0.5 * losses[0]


def test_the_shipped_policy_is_small_and_fits_its_tokenizer():
    folder = model_folder("builtin:demo")
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4_000_000
    assert Tokenizer.from_folder(folder).vocabulary == load_policy(folder).shape.vocabulary == VOCABULARY


def test_no_shipped_demonstration_is_a_task_of_a_run():
    shown = {parse_name(demonstration.task) for demonstration in read_demonstrations(warmstart.shipped_corpus())}
    tasks = resolve(preset="demo").config.tasks
    drawn = {parse_name(name) for kind in KINDS for name in pool_names(tasks, kind)}
    assert len(shown) >= 1000
    assert None not in shown
    assert {seed for seed, _ in filter(None, shown)}.isdisjoint({seed for seed, _ in filter(None, drawn)})


@pytest.mark.slow
def test_the_shipped_corpus_still_makes_a_policy_as_good_as_the_shipped_one(tmp_path):
    losses: list[float] = []
    warmstart.make_shipped(tmp_path, on_progress=lambda p: losses.append(p.loss))
    assert (tmp_path / "tokenizer.json").read_bytes() == (model_folder("builtin:demo") / "tokenizer.json").read_bytes()
    # Other processors give other bits, and 1,200 large steps make other weights of them; the shipped one ended at 0.116.
    assert sum(losses[-50:]) / 50 < 0.15
