"""Router record and replay (T1 section 4, R3).

A recording is one integer array (N, L, K): for each row of a slab and each mixture-of-experts layer, the K chosen
experts. It is handed to a forward as an argument and comes back as a result, keyed by (row, layer): no hooks, no
queue, no cursor, nothing global, so a second forward (activation recompute, another micro-batch, another model)
can't take the wrong rows.

Guarantees: a recording that is missing rows or layers, has another K, names an expert twice in a row, or one that does
not exist, raises ``RoutingError`` where it enters; nothing is ever filled in.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

RoutingArray: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.int64]


class RoutingError(Exception):
    """Routing rows that can't be replayed. Says which rows and what was expected; the trial must not be trained on."""


def routing_dtype(experts: int) -> type[np.uint8] | type[np.uint16]:
    """What holds an expert's number."""
    return np.uint8 if experts <= 256 else np.uint16


def check_routing(
    routing: RoutingArray | Tensor, *, rows: int, layers: int, experts: int, experts_per_token: int
) -> Tensor:
    """``routing`` as an int64 tensor (rows, layers, experts_per_token), each row's experts in ascending order, the
    order in which a row's experts are combined. Raises ``RoutingError``."""
    expected = (rows, layers, experts_per_token)
    if tuple(routing.shape) != expected:
        raise RoutingError(
            f"routing has shape {tuple(routing.shape)} where (rows, layers, experts per token) = {expected}: "
            "every predicting position needs a row of every mixture-of-experts layer"
        )
    if isinstance(routing, np.ndarray):
        if routing.dtype.kind not in "ui":
            raise RoutingError(f"routing has dtype {routing.dtype}: expert numbers are integers")
        routing_NLK = torch.from_numpy(routing.astype(np.int64))
    else:
        if routing.is_floating_point() or routing.dtype == torch.bool:
            raise RoutingError(f"routing has dtype {routing.dtype}: expert numbers are integers")
        routing_NLK = routing.to(torch.int64)
    if rows == 0:
        return routing_NLK
    outside = (routing_NLK < 0) | (routing_NLK >= experts)
    if bool(outside.any()):
        row, layer, slot = (int(i) for i in outside.nonzero()[0])
        raise RoutingError(
            f"routing row {row}, layer {layer}: expert {int(routing_NLK[row, layer, slot])} does not exist; "
            f"the model has {experts}"
        )
    ordered = routing_NLK.sort(dim=-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]).any(dim=-1)
    if bool(twice.any()):
        row, layer = (int(i) for i in twice.nonzero()[0])
        raise RoutingError(
            f"routing row {row}, layer {layer} names an expert twice: {routing_NLK[row, layer].tolist()}"
        )
    return ordered
