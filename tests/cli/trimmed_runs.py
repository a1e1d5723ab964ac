"""Recorded runs in small segments whose actors have snapshots, to be trimmed; and commands, called as a person calls them."""

import msgspec

from t1actors.cli.main import main
from t1actors.events import RunFinished, RunPaused
from t1actors.log.filelog import FileLog
from t1actors.log.snapshots import Snapshot, snapshot_files, write_snapshot
from tests.observe.recorded import Recorder, whole_run

SEGMENT_BYTES = 2_000


def made(directory, write):
    recorder = Recorder(FileLog(directory / "log", "process", segment_bytes=SEGMENT_BYTES))
    write(recorder)
    return recorder


def keep_snapshots(directory):
    """As the actors of a run leave them when it ends: each has read everything."""
    log = FileLog(directory / "log")
    ends = {name: end_of(log, name) for name in log.journals()}
    for name, (base, following, digest) in ends.items():
        if name != "supervisor":
            positions = {other: end[1] for other, end in ends.items() if other != name}
            snapshot = Snapshot(
                base_sequence=base, next_sequence=following, last_frame=digest, code="", shape="", positions=positions,
                vector={}, content=msgspec.msgpack.encode({}),
            )  # fmt: skip
            write_snapshot(log.directory(name), snapshot, flush=False)


def end_of(log, name):
    reader = log.open_reader(name)
    while frames := reader.read(max_frames=1):
        last = frames[0], reader.last_digest()
    reader.close()
    frame, digest = last
    return frame.base_sequence, frame.next_sequence, digest


def finished_run(directory):
    """A finished run on disk whose actors have snapshots."""
    made(directory, whole_run).close()
    keep_snapshots(directory)
    return directory


def stopped_run(directory):
    """The same, stopped just before its end."""

    def write(recorder):
        recorder.change = lambda event: RunPaused(step=7, session=1) if isinstance(event, RunFinished) else event
        whole_run(recorder)

    made(directory, write).close()
    keep_snapshots(directory)
    return directory


def said(capsys, *arguments, status=0):
    assert main([*map(str, arguments)]) == status
    return capsys.readouterr()


def lie(recorded, name):
    """Snapshots of frames that the journal does not have, as a cut of it once left them."""
    log = FileLog(recorded / "log")
    for snapshot in log.snapshots(name):
        wrong = msgspec.structs.replace(snapshot, last_frame=bytes(32), next_sequence=snapshot.next_sequence + 1)
        write_snapshot(log.directory(name), wrong, flush=False)
    return log


def delete_snapshots(directory, *names):
    for name in names:
        for path in snapshot_files(directory / "log" / name):
            path.unlink()
