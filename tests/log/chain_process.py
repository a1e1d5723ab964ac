"""One process of the chain in ``test_chain``: reads a journal, multiplies, writes its own.

    python -m tests.log.chain_process LOG NAME SOURCE COUNT BACKEND

The source (SOURCE is ``-``) counts up to COUNT. Each frame commits what was consumed and what was emitted; on start
the own journal says how far both are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from t1actors.log.causal import CausalReader
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead, InputRun

FACTORS = {"triple": 3, "sink": 7}


async def count_up(log: FileLog, name: str, count: int) -> None:
    writer = log.open_writer(name)
    while writer.next_sequence < count:
        first = writer.next_sequence
        numbers = range(first, min(count, first + 1 + first % 5))
        await anyio.to_thread.run_sync(writer.append, CommitHead(), [msgspec.msgpack.encode(n) for n in numbers])
        await anyio.sleep(0.002)
    await anyio.sleep_forever()


async def multiply(log: FileLog, name: str, source: str) -> None:
    writer = log.open_writer(name)
    own = log.open_reader(name)
    vector: dict[str, int] = {}
    while frames := own.read():
        vector = frames[-1].head.vector
    reader = CausalReader(log, positions={source: vector.get(source, -1) + 1})
    async with log.watch() as watch:
        watch.add(source)
        while True:
            frames = reader.poll(max_frames=3)
            if not frames:
                await watch.wait(0.25)
            for frame in frames:
                start = vector.get(source, -1) + 1
                fresh = frame.events[max(0, start - frame.base_sequence) :]
                if not fresh:
                    continue
                vector = {**vector, **frame.head.vector, source: frame.next_sequence - 1}
                results = [msgspec.msgpack.encode(FACTORS[name] * msgspec.msgpack.decode(raw)) for raw in fresh]
                runs = tuple(InputRun(source, start + n, start + n, 1) for n in range(len(fresh)))
                head = CommitHead(inputs=runs, vector=vector)
                await anyio.to_thread.run_sync(writer.append, head, results)


if __name__ == "__main__":
    root, name, source, count, backend = sys.argv[1:]
    log = FileLog(Path(root), "process" if name == "triple" else "machine", segment_bytes=20_000)
    if source == "-":
        anyio.run(count_up, log, name, int(count), backend=backend)
    else:
        anyio.run(multiply, log, name, source, backend=backend)
