"""Whole messages between a process and the workers it started itself, over a socket pair that nobody else can reach.

Guarantees: a message arrives whole or the other end is gone; nothing waits longer than it was told to; tensors arrive
with their bits, in memory of their own. Messages are pickles: both ends are this program.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

import torch

_LENGTH = struct.Struct("<Q")
SEND_S = 60.0
"""A worker takes what it is sent as it comes; one that takes nothing for this long is stuck."""


class ChannelClosed(Exception):
    """The other end is gone."""


class ChannelTimeout(Exception):
    """The other end said, or took, nothing in time."""


class Channel:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: bytes) -> None:
        """Raises ``ChannelClosed``, ``ChannelTimeout``."""
        self._end.settimeout(SEND_S)
        try:
            for part in (_LENGTH.pack(len(message)), message):
                left = memoryview(part)
                while left:
                    left = left[self._end.send(left) :]
        except TimeoutError as error:
            raise ChannelTimeout(f"took nothing for {SEND_S:g} s") from error
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None) -> object:
        """The next message; ``timeout_s`` is for its beginning, and then for each part. Raises ``ChannelClosed``,
        ``ChannelTimeout``."""
        self._end.settimeout(timeout_s)
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
            return pickle.loads(self._read(length))
        except TimeoutError as error:
            raise ChannelTimeout(f"said nothing for {timeout_s:g} s") from error
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        left = memoryview(data)
        while left:
            count = self._end.recv_into(left)
            if count == 0:
                raise ChannelClosed("closed")
            left = left[count:]
        return data

    def close(self) -> None:
        """Close this end; the other side reads its end."""
        self._end.close()


def encode(message: object) -> bytes:
    """As ``Channel.send`` wants it; encoded once, sent to many."""
    target = io.BytesIO()
    _Pickler(target, protocol=5).dump(message)
    return target.getvalue()


class _Pickler(pickle.Pickler):
    """Tensors as plain bytes: torch's own way is slower, and through shared memory in torch's variant of
    multiprocessing."""

    def reducer_override(self, obj: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        flat = obj.detach().contiguous().reshape(-1).view(torch.uint8)
        data = pickle.PickleBuffer(flat.numpy())  # type: ignore[arg-type]
        return _tensor, (obj.dtype, tuple(obj.shape), data)


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], data: bytearray) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    if data:
        tensor.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(data, dtype=torch.uint8))
    return tensor
