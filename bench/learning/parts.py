"""The parts of the evidence, in the order in which they run."""

from __future__ import annotations

from bench.learning import critic, fidelity, rewards, seeds, variance
from bench.learning.part import Part

PARTS: tuple[Part, ...] = (seeds.PART, critic.PART, rewards.PART, variance.PART, fidelity.PART)
