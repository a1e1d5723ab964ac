"""Which kernels a run uses: looked for by a process of its own, recorded once, given to every actor and every session."""

import json
import sys
from pathlib import Path

import anyio
import pytest

from t1actors.config import Config, ModelConfig, ScheduleConfig
from t1actors.events import RunFinished, RunStarted, decode
from t1actors.log.memory import MemoryLog
from t1actors.runtime import numerics
from t1actors.runtime.actor import Decision
from t1actors.runtime.clock import virtual_clock
from t1actors.runtime.errors import RunDirectoryError
from t1actors.runtime.local import run_local
from t1actors.runtime.numerics import KernelsLacking, Numerics, NumericsUnknown, Search, of_the_run
from tests.runtime import toys

CONFIG = Config(schedule=ScheduleConfig(train_steps=1))


class Asked(toys.Toy):
    """Ends the run as soon as it begins; ``given`` is what each incarnation was told to compute with."""

    def __init__(self, context):
        super().__init__(context)
        given.append(context.config.model.kernels)

    def decide(self, state, event):
        begun = isinstance(event, RunStarted)
        return Decision(events=[RunFinished(steps=0, version="")]) if begun else super().decide(state, event)


given = []


def run(log, **named):
    async def main():
        actors = [("publisher", Asked)]
        return await run_local(
            actors, config=CONFIG, log=log, blobs=None, run_dir=Path("run"), clock=virtual_clock(), **named
        )

    given.clear()
    return anyio.run(main, backend="trio")


def starts(log):
    reader = log.open_reader("supervisor")
    events = [decode(raw) for frame in reader.read() for raw in frame.events]
    return [event for event in events if isinstance(event, RunStarted)]


def test_every_actor_of_every_session_is_given_the_kernels_that_the_run_was_begun_with():
    log = MemoryLog()
    run(log, numerics=Numerics("padded", {"operation torch exp": "1"}))
    assert given == ["padded"]  # the configuration says "auto"
    assert [(event.kernels, event.numerics) for event in starts(log)] == [("padded", {"operation torch exp": "1"})]
    run(log)  # nobody looked this time
    assert given == ["padded"]


def test_a_run_does_not_go_on_with_other_kernels():
    log = MemoryLog()
    run(log, numerics=Numerics("native"))
    with pytest.raises(RunDirectoryError, match=r"begun with the native kernels and would go on with the padded ones"):
        run(log, numerics=Numerics("padded"))
    assert len(starts(log)) == 1


def test_without_a_record_the_configuration_decides():
    asked = Config(model=ModelConfig(kernels="padded"))
    started = RunStarted(run="r", config_digest="", config_toml="", code_version="1.2", environment={})
    assert of_the_run(asked, None) == asked
    assert of_the_run(asked, started) == asked


def test_kernels_of_a_later_version_are_refused():
    started = RunStarted(
        run="r", config_digest="", config_toml="", code_version="1.2", environment={}, kernels="quantum"
    )
    with pytest.raises(RunDirectoryError, match=r"the quantum kernels, which this version does not have.*1\.2"):
        of_the_run(CONFIG, started)


# --- the process that looks ---------------------------------------------------------------------------------------------


@pytest.fixture
def answering(monkeypatch, tmp_path):
    """A Python that prints what a test wants instead of looking."""

    def answer(text, status=0):
        program = tmp_path / "python"
        program.write_text(f"#!{sys.executable}\nimport sys\nprint({text!r})\nsys.exit({status})\n")
        program.chmod(0o755)
        monkeypatch.setattr(numerics.sys, "executable", str(program))

    return answer


def look(wanted="auto"):
    with Search(wanted, env={}) as search:
        return search.found()


def test_what_was_found_is_told(answering):
    answering(json.dumps({"kernels": "padded", "numerics": {"a": "1"}, "passed_over": {"native": "no compiler"}}))
    assert look() == Numerics("padded", {"a": "1"}, {"native": "no compiler"})


def test_kernels_that_are_not_there_are_an_error_that_names_those_that_are(answering):
    answering(json.dumps({"lacking": "no compiled kernels", "instead": "padded"}))
    with pytest.raises(KernelsLacking, match=r"'native' cannot be used here: no compiled kernels; .* 'padded'"):
        look("native")


def test_a_look_that_fails_says_how_and_what_shows_more(answering):
    answering("Traceback", status=3)
    with pytest.raises(NumericsUnknown, match=r"exit status 3.*t1actors\.train\.environment auto"):
        look()


def test_a_look_that_nobody_waits_for_is_ended(monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setattr(numerics.sys, "executable", str(program))
    with Search("auto", env={}) as search:
        process = search._process
    assert process.returncode == -9
