"""Stands in for ``runtime.numerics.Search`` where a test needs no torch."""

from typing import ClassVar

from t1actors.runtime.numerics import KernelsLacking, Numerics


class KernelsFound:
    """Says at once that the kernels that were asked for are there."""

    lacking = ""
    """Why they are not, where a test wants that."""
    facts: ClassVar = {"kernels": "native/avx2", "operation float32 matmul": "1", "operation torch exp": "2"}

    def __init__(self, wanted):
        self._wanted = wanted

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def found(self):
        if self.lacking:
            raise KernelsLacking(self._wanted, self.lacking, "padded")
        return Numerics("native" if self._wanted == "auto" else self._wanted, self.facts)
