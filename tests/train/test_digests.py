"""Digests of levels, and the short ones that find the place."""

import numpy as np
import torch

from t1actors.train.digests import (
    PartDetail,
    UpdateDetail,
    array_digest,
    decode_detail,
    encode_detail,
    first_difference,
    gradient_digest,
    losses_digest,
    short,
    tensor_digests,
    trial_digests,
)
from tests.train.tiny_batches import batch_of, tiny_policy


def test_an_arrays_digest_covers_dtype_shape_and_bits_and_not_the_layout():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert array_digest(a) == array_digest(np.asfortranarray(a)) == array_digest(a.astype(">f4"))
    others = [a.reshape(3, 2), a.astype(np.float64), np.where(a == 0, -0.0, a).astype(np.float32)]
    assert len({array_digest(x) for x in [a, *others]}) == 4


def test_losses_and_gradients_are_digested_in_the_order_of_updates():
    assert losses_digest([1.0, 2.0]) != losses_digest([2.0, 1.0])
    first, second = [b"a" * 32, b"b" * 32], [b"c" * 32, b"d" * 32]
    assert gradient_digest([first, second]) != gradient_digest([second, first])
    assert gradient_digest([first, second]) != gradient_digest([[*first, *second]])


def test_tensors_are_digested_in_name_order_and_by_name():
    a, b = torch.ones(2), torch.zeros(2)
    assert tensor_digests({"b": b, "a": a}) == tensor_digests({"a": a, "b": b})
    assert tensor_digests({"a": a}) != tensor_digests({"c": a})


def test_the_first_short_digest_that_differs_is_found_also_when_one_side_ends():
    one, two, three = b"1" * 32, b"2" * 32, b"3" * 32
    assert first_difference(short([one, two]), short([one, two])) is None
    assert first_difference(short([one, two]), short([one, three])) == 1
    assert first_difference(short([one]), short([one, two])) == 1


def test_a_trials_digest_changes_with_its_own_tokens_alone():
    batch = batch_of(tiny_policy())
    stream = np.zeros(batch.sampled, dtype=np.float32)
    changed = stream.copy()
    changed[batch.trials[3].first] = 1
    assert first_difference(trial_digests(stream, batch), trial_digests(changed, batch)) == 3
    assert first_difference(trial_digests(stream, batch)[32:], trial_digests(changed, batch)[32:]) is None


def test_detail_survives_its_bytes():
    detail = PartDetail(
        tensors=("a", "b"),
        trials=b"12345678",
        updates=(UpdateDetail(losses=b"x" * 8, gradients=b"y" * 16),),
        weights=b"w" * 16,
        first=b"f" * 16,
        second=b"s" * 16,
    )
    assert decode_detail(encode_detail(detail)) == detail
