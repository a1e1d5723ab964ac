"""Sequences of turns driven through an engine, as the sampler drives them."""

from dataclasses import dataclass, field

import numpy as np

from t1actors.engine.interface import Engine, GenerateRequest, GenerateResult

STOP_IDS = (4, 9, 17)


@dataclass
class Stream:
    """A sequence's record: what the trainer will see."""

    name: str
    seed: int
    turns: int = 3
    temperature: float = 1.0
    max_new_tokens: int = 12
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    routing: list[np.ndarray] = field(default_factory=list)
    results: list[GenerateResult] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(len(rows) for rows in self.routing)

    def context(self, turn: int) -> list[int]:
        generator = np.random.default_rng([self.seed, turn])
        return generator.integers(20, 61, int(generator.integers(1, 30))).tolist()

    def request(self, turn: int) -> GenerateRequest:
        """The next call: this turn's context joins the stream."""
        context = self.context(turn)
        self.ids += context
        self.mask += [0] * len(context)
        self.logprobs += [0.0] * len(context)
        return GenerateRequest(
            request_id=f"{self.name}/{turn}",
            sequence=self.name,
            ids=tuple(self.ids),
            known_rows=self.rows,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=self.seed * 1000 + turn,
            stop_ids=STOP_IDS,
        )

    def accept(self, result: GenerateResult) -> None:
        self.results.append(result)
        self.ids += result.sampled_ids
        self.mask += [1] * len(result.sampled_ids)
        self.logprobs += result.logprobs.tolist()
        self.routing.append(result.routing_RLK)
        assert self.rows == len(self.ids) - 1

    async def run(self, engine: Engine) -> None:
        for turn in range(self.turns):
            self.accept(await engine.generate(self.request(turn)))
