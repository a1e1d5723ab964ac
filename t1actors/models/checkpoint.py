"""Weights as content: canonical state, digest, bytes, and Hugging Face folders.

Canonical weights are a mapping of Hugging Face parameter names to tensors in which tied tensors appear once. Their
digest is a tree of blake3 over fixed blocks of rows, so that it names the numbers and not the layout: any holder of
whole blocks (a shard, a file, a process) computes the same leaves.

Guarantees: ``weights_digest`` depends on names, dtypes, shapes and values only;
``weights_from_bytes(weights_to_bytes(w))`` equals w in every bit; the same weights give the same bytes in every
process; what ``weights_from_bytes`` returns is aligned memory of its own (matrix products may differ in the last bit
with alignment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import blake3
import safetensors
import safetensors.torch
import torch
from torch import Tensor

BLOCK_ROWS = 256
"""Rows of one leaf of the digest tree; a row is a tensor's last dimension. Part of every version's name: never
change it."""


class CheckpointError(Exception):
    """Weights that can't be used: damaged, of another digest, or for another model. Says which tensor and what to
    do."""


def _raw(tensor: Tensor) -> memoryview:
    """The tensor's bytes in C order (little endian on every machine torch runs on)."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def tensor_digest(name: str, tensor: Tensor) -> bytes:
    """The 32-byte digest of one named tensor: blake3 over its header and the digests of its blocks of rows."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    header = f"{name}\0{dtype}\0{','.join(map(str, tensor.shape))}\0".encode()
    row = tensor.shape[-1] if tensor.ndim else 1
    block_bytes = max(1, BLOCK_ROWS * row * tensor.element_size())
    data = _raw(tensor)
    node = blake3.blake3(header)
    for start in range(0, len(data), block_bytes):
        node.update(blake3.blake3(data[start : start + block_bytes]).digest())
    return node.digest()


def weights_digest(weights: Mapping[str, Tensor], *, progress: Callable[[int, int], None] | None = None) -> str:
    """The content digest that names these weights, in hex. ``progress`` hears of bytes: done, total."""
    root = blake3.blake3(b"t1actors weights 1\0")
    done, total = 0, sum(tensor.nbytes for tensor in weights.values())
    for name in sorted(weights):
        root.update(tensor_digest(name, weights[name]))
        done += weights[name].nbytes
        if progress is not None:
            progress(done, total)
    return root.hexdigest()


def weights_to_bytes(weights: Mapping[str, Tensor]) -> bytes:
    """The weights as one safetensors file, deterministic."""
    return safetensors.torch.save({name: weights[name].detach().to("cpu").contiguous() for name in sorted(weights)})


def weights_from_bytes(
    data: bytes | memoryview, *, version: str | None = None, progress: Callable[[int, int], None] | None = None
) -> dict[str, Tensor]:
    """The weights in ``data``, in name order. With ``version``, they must have that digest; ``progress`` hears of bytes that
    are checked: done, total.

    Raises:
        CheckpointError: not a safetensors file, or other weights than ``version`` names.
    """
    try:
        loaded = safetensors.torch.load(bytes(data))
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"weights of {len(data)} bytes are no safetensors file ({error}); fetch them again"
        ) from error
    weights = {name: loaded[name].clone() for name in sorted(loaded)}
    if version is not None and (found := weights_digest(weights, progress=progress)) != version:
        raise CheckpointError(
            f"weights have digest {found[:16]}… where version {version[:16]}… was asked for; "
            "the blob is not what its name says"
        )
    return weights


def require_same_tensors(expected: Mapping[str, Tensor], given: Mapping[str, Tensor], *, what: str) -> None:
    """Raise ``CheckpointError`` unless names and shapes agree (dtypes may differ: a sampler may cast)."""
    missing = sorted(expected.keys() - given.keys())
    extra = sorted(given.keys() - expected.keys())
    if missing or extra:
        raise CheckpointError(f"{what}: tensors missing {missing[:3]}, unknown {extra[:3]}; another model's weights")
    for name, tensor in expected.items():
        if given[name].shape != tensor.shape:
            raise CheckpointError(
                f"{what}: {name} has shape {list(given[name].shape)}, the model wants {list(tensor.shape)}"
            )
