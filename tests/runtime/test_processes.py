"""Actors as real processes: killed, restarted, stopped, orphaned, hopeless."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from t1actors.config import Config, RunConfig, ScheduleConfig, to_toml
from t1actors.events import (
    ActorReady,
    ActorStarted,
    ActorStopped,
    DiskFreed,
    DiskLow,
    EffectFinished,
    GenerationQuiesced,
    ReplicaReclaimed,
    RunPaused,
    RunStarted,
    RunStopped,
    StopRequested,
    decode,
)
from t1actors.log.filelog import FileLog
from t1actors.log.interface import JournalFenced
from t1actors.runtime.errors import RunDirectoryError
from t1actors.runtime.plan import ActorPlan, RunPlan
from t1actors.runtime.supervisor import supervise

ROOT = Path(__file__).parents[2]


def plan(run_dir, *, total=60, budget=1000, first="SlowSource", concludes="sink", grace_s=10.0, **actors):
    """The chain, or ``name=Toy`` actors."""
    chosen = actors or {"source": first, "triple": "Triple", "sink": "Sink"}
    return RunPlan(
        run_dir=run_dir,
        config=Config(
            run=RunConfig(log_durability="process", restart_budget=budget, backoff_s=0.01, backoff_max_s=0.02),
            schedule=ScheduleConfig(train_steps=total),
        ),
        actors=tuple(ActorPlan(name, f"tests.runtime.toys:{toy}") for name, toy in chosen.items()),
        concludes=concludes,
        env={"PYTHONPATH": str(ROOT)},
        stop_grace_s=grace_s,
    )


def events(run_dir, journal, *kinds):
    reader = FileLog(run_dir / "log").open_reader(journal)
    found = []
    while frames := reader.read():
        found.extend(decode(raw) for frame in frames for raw in frame.events)
    reader.close()
    return [event for event in found if not kinds or isinstance(event, kinds)]


def numbers(run_dir, journal):
    return [event.step for event in events(run_dir, journal, GenerationQuiesced)]


def assert_exact(run_dir, total):
    assert numbers(run_dir, "source") == list(range(total))
    assert numbers(run_dir, "triple") == [3 * n for n in range(total)]


def alive(pid):
    """Whether ``pid`` runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition, deadline_s=120.0):
    with anyio.fail_after(deadline_s):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.02)


def supervised(run_plan, beside=None):
    """The result of the run, with ``beside`` (an async function) running next to it."""

    async def main():
        async with anyio.create_task_group() as tasks:
            if beside is not None:
                tasks.start_soon(beside)
            result = await supervise(run_plan)
            tasks.cancel_scope.cancel()
            return result

    return anyio.run(main, backend="trio")


def killing(run_dir, kills, total, seed):
    """Kills one of the running actors, chosen at random, each time the run has come a bit further. ``source`` stands still
    until the other is started again, so that the run does not come to its end before all kills have happened."""

    async def kill():
        chance = random.Random(seed)
        reader = FileLog(run_dir / "log").open_reader("triple")

        def come_to(goal):
            reader.read()
            return reader.next_sequence >= goal

        def pids():
            return {event.actor: event.pid for event in events(run_dir, "supervisor", ActorStarted)}

        def replaced(actor, pid):
            return pids()[actor] != pid

        for n in range(kills):
            await until(partial(come_to, n * total // kills))
            running = pids()
            if running:
                victim = chance.choice(sorted(running))
                with suppress(ProcessLookupError):
                    if victim != "source":
                        os.kill(running["source"], signal.SIGSTOP)
                    os.kill(running[victim], signal.SIGKILL)
                    await until(partial(replaced, victim, running[victim]))
                    if victim != "source":
                        os.kill(running["source"], signal.SIGCONT)

    return kill


def test_a_chain_of_processes_gives_exact_results_through_kill_9(tmp_path):
    total = 450
    result = supervised(plan(tmp_path, total=total), killing(tmp_path, 12, total, seed=1))
    assert result.reason == "finished"
    assert result.restarts >= 9
    assert_exact(tmp_path, total)
    for name in ("source", "triple", "sink"):
        epochs = [event.epoch for event in events(tmp_path, "supervisor", ActorStarted) if event.actor == name]
        assert epochs == sorted(set(epochs))
        reader = FileLog(tmp_path / "log").open_reader(name)
        assert {frame.epoch for frame in reader.read(max_frames=100_000)} <= set(epochs)


@pytest.mark.slow
def test_a_chain_of_processes_gives_exact_results_through_a_hundred_kill_9(tmp_path):
    total = 6000
    result = supervised(plan(tmp_path, total=total), killing(tmp_path, 100, total, seed=2))
    assert result.reason == "finished"
    assert_exact(tmp_path, total)


def test_the_supervisors_journal_tells_the_run(tmp_path):
    result = supervised(plan(tmp_path, first="Source"))
    assert (result.reason, result.restarts) == ("finished", 0)
    assert result.cpu_seconds > 0
    told = events(tmp_path, "supervisor")
    assert isinstance(told[0], RunStarted)
    assert told[0].config_toml == (tmp_path / "config.toml").read_text()
    assert not told[0].resumed
    for name in ("source", "triple", "sink"):
        kinds = [type(event) for event in told[1:-1] if event.actor == name]
        assert kinds == [ActorStarted, ActorReady, ActorStopped]
    assert all(event.exit_code == 0 for event in told if isinstance(event, ActorStopped))
    assert all(event.rss_bytes > 1_000_000 for event in told if isinstance(event, ActorReady))
    assert told[-1] == RunStopped(reason="finished", cpu_s=result.cpu_seconds)


async def until_underway(run_dir):
    await until(lambda: len(events(run_dir, "supervisor", ActorReady)) == 3 and numbers(run_dir, "triple"))


def test_ctrl_c_ends_the_phase_stops_cleanly_and_the_run_can_be_resumed(tmp_path):
    async def interrupt():
        await until_underway(tmp_path)
        os.kill(os.getpid(), signal.SIGINT)

    total = 1500
    result = supervised(plan(tmp_path, total=total), interrupt)
    assert result.reason == "interrupted"
    [paused] = events(tmp_path, "sink", RunPaused)
    assert result.detail == f"paused before step {paused.step}"
    assert [event.exit_code for event in events(tmp_path, "supervisor", ActorStopped)] == [0, 0, 0]
    assert len(numbers(tmp_path, "triple")) < total
    # Source must go on by itself: its effect was left open. The pause of the first session does not end the second.
    result = supervised(plan(tmp_path, total=total, first="Source"))
    assert result.reason == "finished"
    assert [event.resumed for event in events(tmp_path, "supervisor", RunStarted)] == [False, True]
    assert [event.session for event in events(tmp_path, "supervisor", RunStarted)] == [1, 2]
    assert paused.session == 1
    assert_exact(tmp_path, total)


@pytest.mark.slow
def test_a_run_can_be_paused_and_resumed_again_and_again(tmp_path):
    async def interrupt():
        before = len(events(tmp_path, "supervisor", RunStopped))
        await until(lambda: len(events(tmp_path, "supervisor", ActorReady)) == 3 * (before + 1))
        os.kill(os.getpid(), signal.SIGINT)

    total = 1500
    for _ in range(3):
        assert supervised(plan(tmp_path, total=total), interrupt).reason == "interrupted"
    assert supervised(plan(tmp_path, total=total)).reason == "finished"
    assert [pause.session for pause in events(tmp_path, "sink", RunPaused)] == [1, 2, 3]
    assert_exact(tmp_path, total)


def test_a_run_that_ends_while_it_is_asked_to_stop_is_finished(tmp_path):
    async def interrupt():
        await until_underway(tmp_path)
        os.kill(os.getpid(), signal.SIGINT)

    # 3 * 9 is below the first number at which the sink would pause.
    assert supervised(plan(tmp_path, total=10), interrupt).reason == "finished"
    assert_exact(tmp_path, 10)


def test_ctrl_c_while_an_actor_waits_to_be_started_again_ends_the_run(tmp_path):
    async def interrupt():
        await until(lambda: len(events(tmp_path, "supervisor", ActorStopped)) == 1)
        await until(lambda: len(events(tmp_path, "supervisor", ActorReady)) >= 1)
        os.kill(os.getpid(), signal.SIGINT)

    patient = plan(tmp_path, pausing="Pausing", hapless="Hapless", concludes="pausing")
    run = replace(patient.config.run, backoff_s=1000.0, backoff_max_s=1000.0)
    result = supervised(replace(patient, config=replace(patient.config, run=run)), interrupt)
    assert (result.reason, result.restarts) == ("interrupted", 0)


def test_ctrl_c_before_the_first_actor_runs_is_not_lost(tmp_path):
    async def interrupt():
        await until(lambda: events(tmp_path, "supervisor", RunStarted))
        os.kill(os.getpid(), signal.SIGINT)

    assert supervised(plan(tmp_path, pausing="Pausing", concludes="pausing"), interrupt).reason == "interrupted"
    assert [type(event) for event in events(tmp_path, "supervisor", StopRequested)] == [StopRequested]


def test_a_second_ctrl_c_stops_at_once_and_a_third_kills_what_hangs(tmp_path):
    stopped_at = []

    async def interrupt_thrice():
        await until(lambda: len(events(tmp_path, "hanging")) > 0)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep(0.3)
            assert not events(tmp_path, "supervisor", ActorStopped)
        os.kill(os.getpid(), signal.SIGINT)
        stopped_at.append(time.monotonic())

    result = supervised(plan(tmp_path, hanging="Hanging", grace_s=1000.0), interrupt_thrice)
    assert (result.reason, result.detail) == ("interrupted", "stopped by SIGINT")
    assert stopped_at
    assert [event.reason for event in events(tmp_path, "supervisor", ActorStopped)] == ["killed by SIGKILL"]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_whatever_comes_after_the_first_ctrl_c_is_a_clean_stop_at_once(tmp_path, second):
    async def interrupt():
        await until(lambda: events(tmp_path, "supervisor", ActorReady))
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: events(tmp_path, "supervisor", StopRequested))
        os.kill(os.getpid(), second)

    result = supervised(plan(tmp_path, deaf="Toy", concludes="deaf"), interrupt)
    assert (result.reason, result.detail) == ("interrupted", f"stopped by {second.name}")
    assert [event.exit_code for event in events(tmp_path, "supervisor", ActorStopped)] == [0]


def test_ctrl_c_on_a_terminal_does_not_reach_the_actors(tmp_path):
    seen = []

    async def look():
        await until(lambda: len(events(tmp_path, "supervisor", ActorReady)) == 1)
        pid = events(tmp_path, "supervisor", ActorStarted)[0].pid
        seen.append((os.getpgid(pid), os.getsid(pid), pid))
        os.kill(os.getpid(), signal.SIGTERM)

    supervised(plan(tmp_path, pausing="Pausing"), look)
    [(group, session, pid)] = seen
    assert group == session == pid != os.getpgid(0)


def test_an_actor_that_does_not_stop_in_time_is_killed(tmp_path):
    async def interrupt():
        await until(lambda: len(events(tmp_path, "hanging")) > 0)
        os.kill(os.getpid(), signal.SIGTERM)

    result = supervised(plan(tmp_path, hanging="Hanging", grace_s=0.2), interrupt)
    assert result.reason == "interrupted"
    assert [event.exit_code for event in events(tmp_path, "supervisor", ActorStopped)] == [-signal.SIGKILL]


def test_cancelling_the_caller_is_a_clean_stop(tmp_path):
    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervise, plan(tmp_path, total=100_000))
            await until(lambda: len(events(tmp_path, "supervisor", ActorReady)) == 3)
            tasks.cancel_scope.cancel()

    anyio.run(main, backend="trio")
    assert [event.exit_code for event in events(tmp_path, "supervisor", ActorStopped)] == [0, 0, 0]
    assert events(tmp_path, "supervisor", RunStopped)[0].reason == "interrupted"


def test_what_a_restart_cannot_heal_ends_the_run_at_once_and_says_what_to_do(tmp_path):
    result = supervised(plan(tmp_path, source="Source", triple="Triple", helpless="Helpless"))
    assert (result.reason, result.failed_actor, result.restarts) == ("failed", "helpless", 0)
    assert "actor helpless: Unrecoverable: this host has no toys; buy some" in result.detail
    assert str(tmp_path / "logs" / "helpless.log") in result.detail


def test_a_factory_that_is_not_there_ends_the_run_at_once(tmp_path):
    result = supervised(plan(tmp_path, lost="NoSuchToy"))
    assert (result.reason, result.failed_actor, result.restarts) == ("failed", "lost", 0)
    assert "has no callable 'NoSuchToy'" in result.detail


def test_an_actor_that_keeps_dying_spends_its_budget_and_is_named_with_its_last_words(tmp_path):
    result = supervised(plan(tmp_path, budget=2, hapless="Hapless"))
    assert (result.reason, result.failed_actor, result.restarts) == ("failed", "hapless", 2)
    assert "always the same mistake" in result.detail
    assert result.log_tail[-2:] == (
        "ValueError: always the same mistake",
        "actor hapless was applying event 0 of journal supervisor",
    )
    stops = events(tmp_path, "supervisor", ActorStopped)
    assert [(stop.epoch, stop.exit_code) for stop in stops] == [(1, 1), (2, 1), (3, 1)]


def test_the_whole_group_of_a_dead_actor_is_gone_before_its_successor_starts(tmp_path):
    seen = []

    async def kill():
        helper = tmp_path / "helper.1"
        await until(lambda: helper.exists() and helper.read_text())
        await until(lambda: events(tmp_path, "supervisor", ActorStarted))
        os.kill(events(tmp_path, "supervisor", ActorStarted)[0].pid, signal.SIGKILL)
        await until(lambda: len(events(tmp_path, "supervisor", ActorStarted)) == 2)
        seen.append(alive(int(helper.read_text())))
        await until(lambda: len(events(tmp_path, "supervisor", ActorReady)) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    supervised(plan(tmp_path, helped="WithHelper"), kill)
    assert seen == [False]
    assert not alive(int((tmp_path / "helper.2").read_text()))


def test_what_an_actor_left_in_another_session_is_ended_with_the_run(tmp_path):
    async def interrupt():
        await until(lambda: events(tmp_path, "supervisor", ActorReady))
        assert alive(int((tmp_path / "daemon").read_text()))
        os.kill(os.getpid(), signal.SIGTERM)

    supervised(plan(tmp_path, careless="Careless"), interrupt)
    assert not alive(int((tmp_path / "daemon").read_text()))


SUPERVISOR_SCRIPT = """
import sys
from pathlib import Path
import anyio
from tests.runtime.test_processes import plan
from t1actors.runtime.supervisor import supervise
assert "torch" not in sys.modules
actors = dict(source="SlowSource", triple="Triple", helped="WithHelper")
anyio.run(supervise, plan(Path(sys.argv[1]), total=100_000, **actors), backend="trio")
"""


def test_actors_and_their_helpers_die_with_a_killed_supervisor_and_the_run_resumes(tmp_path):
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR_SCRIPT, str(tmp_path)], cwd=ROOT)
    try:
        anyio.run(until, lambda: len(events(tmp_path, "supervisor", ActorReady)) == 3)
        pids = [event.pid for event in events(tmp_path, "supervisor", ActorStarted)]
        pids.append(int((tmp_path / "helper.1").read_text()))
        assert all(alive(pid) for pid in pids)
        supervisor.kill()
        anyio.run(until, lambda: not any(alive(pid) for pid in pids))
    finally:
        supervisor.kill()
        supervisor.wait()

    async def interrupt():
        await until(lambda: len(events(tmp_path, "supervisor", ActorReady)) == 6)
        os.kill(os.getpid(), signal.SIGTERM)

    resumed = plan(tmp_path, total=100_000, source="SlowSource", triple="Triple", helped="WithHelper")
    assert supervised(resumed, interrupt).reason == "interrupted"
    assert len({event.epoch for event in events(tmp_path, "supervisor", ActorStarted) if event.actor == "source"}) > 1


def test_a_run_directory_has_one_supervisor_and_one_configuration(tmp_path):
    writer = FileLog(tmp_path / "log").open_writer("supervisor")
    with pytest.raises(JournalFenced):
        anyio.run(supervise, plan(tmp_path))
    writer.close()
    with pytest.raises(RunDirectoryError, match="another configuration"):
        anyio.run(supervise, plan(tmp_path, total=61))


def test_a_run_is_not_resumed_with_a_configuration_that_was_edited(tmp_path):
    supervised(plan(tmp_path))
    path = tmp_path / "config.toml"
    for spoil in (lambda: path.write_text(to_toml(plan(tmp_path, total=61).config)), path.unlink):
        spoil()
        with pytest.raises(RunDirectoryError, match="begun with another configuration"):
            anyio.run(supervise, plan(tmp_path, total=61))


def test_supervisor_and_actor_process_import_no_torch():
    code = "import sys, t1actors.runtime.supervisor, t1actors.runtime.process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_disk_that_gets_low_and_is_freed_is_told_once_each(tmp_path, monkeypatch):
    free = iter([300, 200, 100, 100, 260, 330, 330])
    latest = [0]

    def usage(path):
        latest[0] = next(free, latest[0])
        return SimpleNamespace(free=latest[0] * 1_000_000)

    monkeypatch.setattr("t1actors.runtime.machine.shutil.disk_usage", usage)
    monkeypatch.setattr("t1actors.runtime.supervisor.DISK_EVERY_S", 0.01)
    assert supervised(plan(tmp_path, total=200)).reason == "finished"
    told = [event.free_bytes for event in events(tmp_path, "supervisor", (DiskLow, DiskFreed))]
    assert told == [200_000_000, 330_000_000]


def test_an_actor_that_stands_still_is_killed_and_started_again(tmp_path):
    """Stopped by a signal: it is not dead, holds its journal, and does nothing."""

    async def stop():
        await until(lambda: len(events(tmp_path, "supervisor", ActorReady)) == 3)
        started = {event.actor: event.pid for event in events(tmp_path, "supervisor", ActorStarted)}
        os.kill(started["triple"], signal.SIGSTOP)

    found = replace(plan(tmp_path, total=400), silence_s=0.8)
    assert supervised(found, stop).reason == "finished"
    [death] = [event for event in events(tmp_path, "supervisor", ActorStopped) if event.exit_code]
    assert (death.actor, death.exit_code) == ("triple", -signal.SIGKILL)
    assert death.reason.startswith("no sign of life for")
    assert_exact(tmp_path, 400)


def test_an_effect_that_hangs_where_nothing_can_cancel_it_has_its_process_killed_and_is_performed_again(tmp_path):
    async def stop_when_done():
        await until(lambda: len(events(tmp_path, "stuck", EffectFinished)) == 1)
        os.kill(os.getpid(), signal.SIGTERM)

    found = plan(tmp_path, total=100_000, source="SlowSource", triple="Triple", stuck="Stuck")
    assert supervised(found, stop_when_done).reason == "interrupted"
    death = next(event for event in events(tmp_path, "supervisor", ActorStopped) if event.actor == "stuck")
    assert (death.exit_code, death.reason) == (-signal.SIGKILL, "stuck has made no progress for 0 s")
    [finished] = events(tmp_path, "stuck", EffectFinished)
    assert (finished.status, finished.attempt) == ("done", 2)


def test_a_replica_that_keeps_dying_is_given_up_and_the_last_one_is_not(tmp_path):
    async def source_waits():
        """However long it takes a process to start and to die."""
        await until(lambda: any(event.actor == "source" for event in events(tmp_path, "supervisor", ActorStarted)))
        [source] = [event.pid for event in events(tmp_path, "supervisor", ActorStarted) if event.actor == "source"]
        os.kill(source, signal.SIGSTOP)
        await until(lambda: events(tmp_path, "supervisor", ReplicaReclaimed))
        os.kill(source, signal.SIGCONT)

    found = plan(tmp_path, total=400, budget=2, source="SlowSource", triple="Triple", triple1="Mortal", sink="Sink")
    result = supervised(replace(found, replicas=frozenset({"triple", "triple1"})), source_waits)
    assert result.reason == "finished"
    [given_up] = events(tmp_path, "supervisor", ReplicaReclaimed)
    assert given_up.replica == "triple1"
    assert given_up.reason.startswith("died again after 2 restarts in ten minutes: OSError: no room for me")

    alone = plan(tmp_path / "alone", budget=2, source="SlowSource", triple="Mortal", sink="Sink")
    result = supervised(replace(alone, replicas=frozenset({"triple"})))
    assert (result.reason, result.failed_actor) == ("failed", "triple")
    assert events(tmp_path / "alone", "supervisor", ReplicaReclaimed) == []
