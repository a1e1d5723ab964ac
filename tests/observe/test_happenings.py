"""What a run's display tells of events that are rare."""

from t1actors.events import ReplicaReclaimed
from t1actors.observe.happenings import happenings
from t1actors.observe.view import RunView


def test_a_replica_that_is_given_up_is_told_with_its_reason():
    [told] = happenings(RunView(), [ReplicaReclaimed(replica="sampler1", reason="died again after 20 restarts")])
    assert told.kind == "replica_reclaimed"
    assert told.text.startswith("sampler1 was given up, the others go on without it")
    assert told.text.endswith("died again after 20 restarts")
