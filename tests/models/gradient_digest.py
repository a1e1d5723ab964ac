"""Prints digests of a packed training pass: run in several processes by ``test_determinism``."""

import torch

from t1actors.models.checkpoint import tensor_digest, weights_to_bytes
from t1actors.models.value import ValueModel
from t1actors.payloads import digest_of
from tests.models.small import random_ids, random_routing, small_policy


def digests() -> list[str]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return _digests()
    finally:
        torch.use_deterministic_algorithms(before)


def _digests() -> list[str]:
    lengths = [70, 3, 41, 1, 64]
    ids_N = random_ids(sum(lengths))
    found = []
    for experts in ("grouped_mm", "eager"):
        policy = small_policy(experts=experts)
        forwarded = policy.forward_packed(ids_N, lengths, random_routing(policy, sum(lengths)))
        logprobs, _ = policy.logprobs(forwarded.hidden_NH, ids_N, temperature=0.9)
        logprobs.sum().backward()
        critic = ValueModel.from_policy(policy)
        values = critic.values(critic.forward_packed(ids_N, lengths).hidden_NH)
        (values - 1).square().sum().backward()
        found.append(tensor_digest("logprobs", logprobs).hex())
        for network in (policy, critic):
            for name, parameter in network.parameters().items():
                assert parameter.grad is not None, name
                found.append(tensor_digest(name, parameter.grad).hex())
        found.append(digest_of(weights_to_bytes(policy.weights())))
    return found


if __name__ == "__main__":
    print("\n".join(digests()))
