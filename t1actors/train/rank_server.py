"""A worker of a crew: answers one message after another, and ends with the first that fails.

Guarantees: it holds networks, the state after its last job and that job's batch, and nothing else; what fails is told
to the process that started the crew, and by closing its connections to the other ranks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from t1actors.models.policy import Policy
from t1actors.models.value import ValueModel
from t1actors.train.batch import Batch
from t1actors.train.channel import Channel, ChannelClosed, ChannelTimeout, encode
from t1actors.train.errors import RanksError, StateError
from t1actors.train.jobs import Done, Failed, Join, Joined, NetworkKind, Ready, Task
from t1actors.train.ranks import GlooRanks
from t1actors.train.state import TrainerState


@dataclass
class _Held:
    networks: dict[tuple[str, NetworkKind, str], Policy | ValueModel] = field(default_factory=dict)
    """By part, kind and architecture."""
    ranks: GlooRanks | None = None
    state: TrainerState | None = None
    batch: Batch | None = None


def serve(end: socket.socket) -> int:
    """Until the other end is gone (0) or something fails (1): the exit status."""
    channel = Channel(end)
    held = _Held()
    try:
        channel.send(encode(Ready(os.getpid())))
        while True:
            channel.send(encode(_answer(held, channel.receive(None))))
    except ChannelClosed:
        return 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the process that started us is told, and it raises
        failed = Failed(f"{type(error).__name__}: {error}", traceback.format_exc(), lost=isinstance(error, RanksError))
        with contextlib.suppress(ChannelClosed, ChannelTimeout):
            channel.send(encode(failed))
        return 1


def _answer(held: _Held, message: object) -> Joined | Done:
    match message:
        case Join():
            if held.ranks is not None:
                held.ranks.close()
            held.state = held.batch = None
            held.ranks = GlooRanks(Path(message.store), message.rank, message.size, timeout_s=message.timeout_s)
            return Joined()
        case Task():
            return _run(held, message)
        case _:
            raise AssertionError(f"not a message to a worker: {message}")


def _run(held: _Held, task: Task) -> Done:
    state, batch, ranks, job = task.state or held.state, task.batch or held.batch, held.ranks, task.job
    assert state is not None
    assert batch is not None
    assert ranks is not None
    key = (job.part, task.network, state.architecture)
    if key not in held.networks:
        held.networks[key] = task.network.make(job.part, state)
    network = held.networks[key]
    if (found := NetworkKind.of(network)) != task.network:
        raise StateError(f"rank {ranks.rank} computes with {found}, rank 0 with {task.network}; bits would differ")
    result = job.run(network, state, batch, ranks)
    held.state, held.batch = job.after(result, state), batch
    return Done(job.proof(result))
