"""What the doctor says of kernels."""

from t1actors.cli.checks_kernels import of_kernels
from t1actors.runtime.numerics import KernelsLacking, Numerics, NumericsUnknown


class Found:
    def __init__(self, answer):
        self._answer = answer

    def found(self):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def of(answer):
    return [(check.name, check.verdict, check.text) for check in of_kernels(Found(answer))]


def test_the_kernels_in_use_are_shown_by_their_full_name():
    assert of(Numerics("native", {"kernels": "native/avx2"})) == [
        ("kernels", "good", "kernels: native/avx2: exact here")
    ]


def test_each_one_passed_over_is_shown_with_its_reason_and_the_fix():
    used, over = of(Numerics("padded", {"kernels": "padded"}, {"native": "no compiled kernels in /x"}))
    assert used[1] == "good"
    assert over[:2] == ("kernels native", "warning")
    assert "not used: no compiled kernels in /x" in over[2]
    assert "install a C compiler" in over[2]
    assert "this package again" in over[2]


def test_without_any_no_run_can_start():
    assert of(KernelsLacking("auto", "none is exact: ...", ""))[0][1] == "bad"
    assert of(NumericsUnknown("torch cannot be loaded")) == [("kernels", "bad", "kernels: torch cannot be loaded")]
