"""Following a run that trims its journals as it goes on."""

import msgspec

from t1actors.events import ActorStarted, TurnExecuted, encode
from t1actors.log.filelog import FileLog
from t1actors.log.frame import CommitHead
from t1actors.log.trim import Mark, begin_at, beginning_of
from t1actors.observe.follow import RunReader

TURN = TurnExecuted(trial="s0.t0", turn=0, observation="x" * 100, exit_code=0, seconds=0.0)


def test_a_reader_that_is_overtaken_by_the_trimming_goes_on_where_the_journal_begins_now(tmp_path):
    log = FileLog(tmp_path / "log", "process", segment_bytes=2000)
    supervisor, pool = log.open_writer("supervisor"), log.open_writer("pool")
    supervisor.append(CommitHead(), [encode(ActorStarted(actor="pool", journal="pool", epoch=1, pid=1))])
    reader = RunReader(log)
    reader.poll()
    for turn in range(600):
        pool.append(CommitHead(vector={"supervisor": 0}), [encode(msgspec.structs.replace(TURN, turn=turn))])
    begin_at(log.directory("pool"), beginning_of(log.directory("pool"), before=400, mark=Mark("nobody", 0)).trimmed)
    first = log.kept_from("pool")
    assert first > 300
    seen = []
    while frames := reader.poll():
        seen += [frame.base_sequence for frame in frames]
    assert seen == [*range(first, 600)]
    reader.close()
    supervisor.close()
    pool.close()
