"""A trial's name says its step, and no other name does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t1actors.actors.trials import step_of_trial, trial_id


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_step_is_read_from_the_name_that_was_made_of_it(step, index):
    assert step_of_trial(trial_id(step, index)) == step


@pytest.mark.parametrize(
    "name", ["", "s3", "s3.t", "3.t1", "t1.s3", "s-3.t1", "s3.t1/0/sample", "s3.t1\n", "s\u0663.t1", "step/3"]
)
def test_what_is_no_trials_name_is_refused(name):
    with pytest.raises(ValueError, match="no trial is called"):
        step_of_trial(name)
