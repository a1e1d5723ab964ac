"""Prints digests of a packed training pass: run in several processes by ``test_determinism``."""

import torch

from t1actors.models.checkpoint import tensor_digest, weights_to_bytes
from t1actors.models.value import ValueModel
from t1actors.payloads import digest_of
from tests.models.small import packed_gradients, random_ids, random_routing, small_policy


def digests() -> list[str]:
    lengths = [70, 3, 41, 1, 64]
    ids_N = random_ids(sum(lengths))
    policy = small_policy()
    logprobs, gradients = packed_gradients(policy, ids_N, lengths, random_routing(policy, sum(lengths)))
    critic = ValueModel.from_policy(policy)
    sums = critic.gradients()
    values = critic.values(critic.forward_packed(ids_N, lengths, gradients=sums).hidden_NH, gradients=sums)
    torch.autograd.backward((values - 1).square(), torch.full_like(values, 2.0**-8))
    found = [tensor_digest("logprobs", logprobs).hex(), tensor_digest("values", values).hex()]
    for named in (gradients, sums.scaled(1.0)):
        found += [tensor_digest(name, gradient).hex() for name, gradient in named.items()]
    return [*found, digest_of(weights_to_bytes(policy.weights()))]


if __name__ == "__main__":
    print("\n".join(digests()))
