"""Credit: advantages, returns, whitening and explained variance (T1 section 7), in float64 and without torch.

Within a chunk let a_1 < ... < a_n be the positions with m = 1. With r_n the trial's reward and every other r_k = 0

    delta_k = r_k + gamma V_{k+1} - V_k,  V_{n+1} = 0;   A_k = delta_k + gamma lambda A_{k+1};   R_k = A_k + V_k

Guarantees: observation positions neither decay nor reset anything and their values are never read; nothing is bootstrapped
across chunks; whitening and explained variance see the whole batch in trial order, once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WHITEN_EPSILON = 1e-8


def gae(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    mask: npt.ArrayLike,
    *,
    gamma: float,
    lam: float,
) -> tuple[Floats, Floats]:
    """(advantages, returns) of one chunk, one entry a position.

    Where the mask is 0 the advantage is 0 and the return is the one of the next sampled position (0 behind the last):
    nothing is trained there, it only shows that time stands still between sampled tokens.

    Raises:
        ValueError: lengths disagree, or a reward lies on a position that was not sampled (it would be lost).
    """
    reward = np.asarray(rewards, dtype=np.float64)
    value = np.asarray(values, dtype=np.float64)
    sampled = np.asarray(mask, dtype=bool)
    if not reward.shape == value.shape == sampled.shape or reward.ndim != 1:
        raise ValueError(f"rewards {reward.shape}, values {value.shape} and mask {sampled.shape} must be one line each")
    if np.any(reward[~sampled]):
        raise ValueError(f"reward on unsampled position {int(np.flatnonzero(reward * ~sampled)[0])}: it would be lost")
    # Plain floats: the recurrence is sequential and a chunk holds few sampled tokens.
    reward_list, value_list, sampled_list = reward.tolist(), value.tolist(), sampled.tolist()
    advantages = [0.0] * len(reward_list)
    returns = [0.0] * len(reward_list)
    next_value = next_advantage = next_return = 0.0
    for k in range(len(reward_list) - 1, -1, -1):
        if sampled_list[k]:
            delta = reward_list[k] + gamma * next_value - value_list[k]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = value_list[k]
            next_return = next_advantage + next_value
            advantages[k] = next_advantage
        returns[k] = next_return
    return np.array(advantages), np.array(returns)


def chunk_credit(reward: float, values: Floats, *, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """(advantages, returns) over a chunk's n sampled tokens: ``reward`` on the last of them, nothing elsewhere."""
    rewards = np.zeros(len(values))
    if len(values) > 0:
        rewards[-1] = reward
    return gae(rewards, values, np.ones(len(values)), gamma=gamma, lam=lam)


def batch_credit(
    chunk_rewards: Sequence[float], chunk_sampled: Sequence[int], values: npt.ArrayLike, *, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """(advantages, returns) over a batch's sampled tokens, chunks one after the other: ``chunk_sampled[c]`` tokens of
    reward ``chunk_rewards[c]`` each."""
    value = np.asarray(values, dtype=np.float64)
    if value.shape != (sum(chunk_sampled),):
        raise ValueError(f"values of shape {value.shape} for {sum(chunk_sampled)} sampled tokens")
    advantages = np.zeros_like(value)
    returns = np.zeros_like(value)
    start = 0
    for reward, count in zip(chunk_rewards, chunk_sampled, strict=True):
        end = start + count
        advantages[start:end], returns[start:end] = chunk_credit(reward, value[start:end], gamma=gamma, lam=lam)
        start = end
    return advantages, returns


def whiten(advantages: Floats) -> Floats:
    """Zero mean, unit (population) deviation over the whole batch."""
    return (advantages - advantages.mean()) / (advantages.std() + WHITEN_EPSILON)


def explained_variance(returns: npt.ArrayLike, values: npt.ArrayLike) -> float:
    """1 - Var[R - V] / Var[R]; 0 when the returns don't vary, for then there is nothing to explain."""
    target = np.asarray(returns, dtype=np.float64)
    spread = float(target.var()) if target.size else 0.0
    if spread == 0.0:
        return 0.0
    return 1.0 - float((target - np.asarray(values, dtype=np.float64)).var()) / spread
