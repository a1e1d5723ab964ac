"""Sampling: tokens a second of the built-in engine beside Hugging Face's `generate`, on the shipped model.

    python -m bench.engine [--quick] [--json FILE]

Two workloads. *One turn*: B prompts, the same number of new tokens from all: what a decode step costs. *Episodes*: recorded
lengths of real work, several turns each, B at a time: what an agent's rollout costs, where caches are kept over turns and
nobody waits for the slowest. Only tokens that a trial would keep are counted.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import anyio.from_thread
import torch

from bench import plain
from bench.measure import Sample, interleaved, rate, ratios, wall
from bench.tables import Table, conclude, parser
from bench.workload import FOLDER, Episode, episodes
from t1actors.engine.core import EngineCore, Job
from t1actors.engine.interface import GenerateRequest
from t1actors.engine.torch_engine import TorchEngine
from t1actors.models.pretrained import load_policy

MAX_IDS = 640


@dataclass(frozen=True)
class Sizes:
    """``played`` episodes at each batch size."""

    batches: tuple[int, ...] = (1, 8, 64)
    new_tokens: int = 40
    played: tuple[int, ...] = (3, 16, 128)
    rounds: int = 5


QUICK = Sizes(batches=(1, 4), new_tokens=4, played=(1, 4), rounds=1)


def request(name: str, ids: Sequence[int], new_tokens: int, known_rows: int = 0) -> GenerateRequest:
    """Exactly ``new_tokens``: nothing stops earlier."""
    return GenerateRequest(
        request_id=name,
        sequence=name,
        ids=tuple(ids),
        max_new_tokens=new_tokens,
        temperature=1.0,
        seed=zlib.crc32(name.encode()),
        stop_ids=(),
        known_rows=known_rows,
    )


def core_turn(core: EngineCore, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
    """The engine's own loop, without an event loop around it."""
    requests = [request(f"core{n}", prompt, new_tokens) for n, prompt in enumerate(prompts)]
    for one in requests:
        core.submit(Job(one, submitted_s=time.perf_counter()))
    while core.has_work:
        core.step()
    for one in requests:
        core.release(one.sequence)


async def engine_turn(engine: TorchEngine, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
    async def one(number: int) -> None:
        await engine.generate(request(f"turn{number}", prompts[number], new_tokens))
        await engine.release(f"turn{number}")

    async with anyio.create_task_group() as tasks:
        for number in range(len(prompts)):
            tasks.start_soon(one, number)


async def engine_play(engine: TorchEngine, played: Sequence[Episode], batch_size: int) -> None:
    """Every episode for itself, ``batch_size`` at a time."""
    waiting = iter(enumerate(played))

    async def work() -> None:
        for number, episode in waiting:
            ids: list[int] = []
            for turn in episode.turns:
                known = max(len(ids) - 1, 0)
                ids += turn.context
                result = await engine.generate(request(f"episode{number}", ids, turn.sampled, known))
                ids += result.sampled_ids
            await engine.release(f"episode{number}")

    async with anyio.create_task_group() as tasks:
        for _ in range(batch_size):
            tasks.start_soon(work)


def one_turn_row(batch: int, tokens: int, found: dict[str, list[Sample]]) -> tuple[object, ...]:
    generate, floor, core, engine = (found[name] for name in ("generate", "floor", "core", "engine"))
    return (
        batch,
        *(rate(tokens, samples) for samples in (generate, floor, core, engine)),
        ratios(generate, engine),
        ratios(generate, engine, of_cpu=True),
        ratios(floor, engine),
        1000 * wall(engine).median * batch / tokens,
    )


def run(sizes: Sizes) -> list[Table]:
    torch.set_num_threads(1)
    model = plain.load()
    most = max(*sizes.batches, *sizes.played)
    shown = episodes(most)
    largest = max(sizes.batches)
    core = EngineCore(load_policy(FOLDER), max_live_sequences=largest, max_ids=MAX_IDS)
    engine = TorchEngine(FOLDER, max_live_sequences=largest, max_ids=MAX_IDS)
    new_tokens = sizes.new_tokens
    turns: list[tuple[object, ...]] = []
    plays: list[tuple[object, ...]] = []
    with anyio.from_thread.start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(engine.running()):

        def on_engine(call: Callable[..., object], *arguments: object) -> Callable[[], object]:
            return lambda: portal.call(call, *arguments)

        for batch, played in zip(sizes.batches, sizes.played, strict=True):
            prompts = [list(episode.turns[0].context) for episode in shown[:batch]]
            found = interleaved(
                {
                    "generate": lambda p=prompts: plain.generate(model, p, new_tokens),
                    "floor": lambda p=prompts: plain.bare_decode(model, p, new_tokens),
                    "core": lambda p=prompts: core_turn(core, p, new_tokens),
                    "engine": on_engine(engine_turn, engine, prompts, new_tokens),
                },
                rounds=sizes.rounds,
            )
            turns.append(one_turn_row(batch, batch * new_tokens, found))
            some = shown[:played]
            found = interleaved(
                {
                    "generate": lambda s=some, b=batch: plain.play(model, s, b),
                    "engine": on_engine(engine_play, engine, some, batch),
                },
                rounds=max(1, sizes.rounds - 2),
            )
            tokens = sum(episode.sampled for episode in some)
            plays.append(
                (
                    batch,
                    played,
                    tokens,
                    rate(tokens, found["generate"]),
                    rate(tokens, found["engine"]),
                    ratios(found["generate"], found["engine"]),
                    ratios(found["generate"], found["engine"], of_cpu=True),
                )
            )
    return [
        Table(
            "Sampling, one turn",
            ("B", "generate tok/s", "bare forward tok/s", "engine core tok/s", "engine tok/s", "engine / generate",
             "of CPU seconds", "engine / bare forward", "engine ms a step"),
            tuple(turns),
            f"{sizes.new_tokens} new tokens for each of B prompts. *generate*: Hugging Face, sampling at temperature 1. "
            "*bare forward*: its batched forward with a cache and an argmax, nothing else. *engine core*: the engine's loop "
            "in one thread. *engine*: as actors call it, on an event loop, with log-probs, entropy and routing recorded. "
            "Prefill is included. Above 1 the engine is faster.",
        ),
        Table(
            "Sampling, episodes of several turns",
            ("B", "episodes", "tokens", "generate tok/s", "engine tok/s", "engine / generate", "of CPU seconds"),
            tuple(plays),
            "Shipped demonstrations: their prompts, their observations, and as many tokens a turn as they had. `generate` "
            "goes in static batches and prefills every turn anew.",
        ),
    ]  # fmt: skip


def main() -> None:
    arguments = parser(__doc__).parse_args()
    conclude("engine", arguments, lambda: run(QUICK if arguments.quick else Sizes()))


if __name__ == "__main__":
    main()
