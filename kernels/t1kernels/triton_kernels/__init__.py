"""The kernels in Triton, for a GPU. Imported only when asked for, since Triton comes with torch for CUDA alone."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from t1kernels.interface import Kernels

__all__ = ["TritonUnavailable", "triton_kernels"]


class TritonUnavailable(RuntimeError):
    """There is no Triton here, or nothing that it could run on. Says which."""


def triton_kernels() -> Kernels:
    """The kernels on the current CUDA device, or in Triton's interpreter where ``TRITON_INTERPRET=1`` is set. Raises
    ``TritonUnavailable``."""
    if find_spec("triton") is None:
        raise TritonUnavailable("triton is not installed: pip install 't1actors[gpu]'")
    from triton import knobs

    if not knobs.runtime.interpret and not torch.cuda.is_available():
        raise TritonUnavailable("torch sees no GPU, and TRITON_INTERPRET=1 is not set")
    from t1kernels.triton_kernels.kernels import TritonKernels

    if knobs.runtime.interpret:
        from t1kernels.triton_kernels import interpreted  # noqa: F401 (its products keep the contract)

        return TritonKernels(torch.device("cpu"))
    return TritonKernels(torch.device("cuda", torch.cuda.current_device()))
