"""Elementwise functions and sums whose bits do not depend on where in memory an element lies.

Torch computes ``+ - * /`` and ``sqrt`` as IEEE 754 rounds them, wherever an element lies; a sum written as a fixed tree
of additions is then the same too. ``exp`` and ``log`` are approximations of which a vector register and the rest that
does not fill one may have different ones, so they are only ever asked for whole registers. That is all that is used
here, and no function of torch that adds up or multiplies and adds in one go.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

WIDTH = 64
"""Elements: a multiple of every processor's vector registers, also of those that torch uses four at a time."""


def _whole(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    rest = -flat.shape[0] % WIDTH
    padded = functional.pad(flat, (0, rest)) if rest else flat.contiguous()
    return function(padded)[: flat.shape[0]].view(x.shape)


def exponential(x: Tensor) -> Tensor:
    """e^x."""
    return _whole(torch.exp, x)


def logarithm(x: Tensor) -> Tensor:
    """ln x, of float32 through float64."""
    return _whole(torch.log, x.double()).float()


def folded(x: Tensor) -> Tensor:
    """The sum over the last dimension: its upper half is added to the lower one until one element is left.

    Trailing zeros change nothing, so a sum may be padded.
    """
    width = x.shape[-1]
    half = 1 << max(0, width - 1).bit_length()
    if half != width:
        x = functional.pad(x, (0, half - width))
    while half > 1:
        half //= 2
        x = x[..., :half] + x[..., half : 2 * half]
    return x[..., 0]


def in_order(x: Tensor) -> Tensor:
    """The sum over the last dimension from left to right."""
    total = x[..., 0]
    for slot in range(1, x.shape[-1]):
        total = total + x[..., slot]
    return total


def decay(before: Tensor, after: Tensor) -> Tensor:
    """e^(before - after) of two running maxima: exactly 1 where nothing changed, also from -inf to -inf."""
    return exponential(before - after).masked_fill(before == after, 1.0)


def probabilities(logits_NE: Tensor) -> Tensor:
    """The softmax over the last dimension, float32."""
    logits = logits_NE.detach().float()
    p = exponential(logits - logits.amax(-1, keepdim=True)) if logits.numel() else logits
    return p / folded(p)[..., None]


def on_grid(partial: Tensor, big: float) -> Tensor:
    """Float32 partials on the grid of an exact sum (``exact``), in float64."""
    return partial.to(torch.float64, copy=True).add_(big).sub_(big)
