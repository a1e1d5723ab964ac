"""Toy actors: source -> triple -> sink, each a dozen lines, with the number carried by GenerationQuiesced.step.

How many numbers there are is the configuration's ``schedule.train_steps``.
"""

import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from t1actors.events import EffectFinished, GenerationQuiesced, RunFinished, RunPaused, RunStarted, StopRequested
from t1actors.runtime.actor import NOTHING, Decision, Effect, Unrecoverable


def number(value, by):
    return GenerationQuiesced(step=value, replica=by)


class Toy:
    """An actor with nothing in it."""

    reads = frozenset()
    effect_type = Effect

    def __init__(self, context):
        self.context = context
        self.total = context.config.schedule.train_steps

    def initial(self):
        return None

    def fold(self, state, event):
        return state

    def decide(self, state, event):
        return NOTHING

    async def perform(self, effect, performing):
        return []

    @asynccontextmanager
    async def running(self):
        yield


class Emit(Effect, frozen=True, kw_only=True):
    first: int
    count: int


@dataclass
class Emitted:
    next: int = 0
    begun: bool = False


class Source(Toy):
    """Emits 0 .. total - 1 by effects, ``count`` numbers each, one effect after the other."""

    effect_type = Emit
    count = 3

    def initial(self):
        return Emitted()

    def fold(self, state, event):
        if isinstance(event, GenerationQuiesced):
            assert event.step == state.next, f"number {event.step} where {state.next} is next"
            state.next += 1
        if isinstance(event, RunStarted):
            state.begun = True
        return state

    def decide(self, state, event):
        begins = isinstance(event, RunStarted) and not event.resumed
        if (begins or isinstance(event, EffectFinished)) and state.next < self.total:
            first = state.next
            return Decision(effects=[Emit(key=f"emit/{first}", first=first, count=min(self.count, self.total - first))])
        return NOTHING

    async def perform(self, effect, performing):
        return [number(n, "source") for n in range(effect.first, effect.first + effect.count)]


class Triple(Toy):
    reads = frozenset({"source"})

    def decide(self, state, event):
        if isinstance(event, GenerationQuiesced):
            return Decision(events=[number(3 * event.step, "triple")])
        return NOTHING


@dataclass
class Received:
    numbers: list[int] = field(default_factory=list)
    session: int = 0
    stopping: bool = False


class Sink(Toy):
    """Ends the run when it has all. Asked to stop, it pauses with the next number above 0 that can be divided by 30."""

    reads = frozenset({"triple"})

    def initial(self):
        return Received()

    def fold(self, state, event):
        if isinstance(event, GenerationQuiesced):
            state.numbers.append(event.step)
        if isinstance(event, RunStarted):
            state.session, state.stopping = event.session, False
        if isinstance(event, StopRequested):
            state.stopping = True
        return state

    def decide(self, state, event):
        if isinstance(event, GenerationQuiesced) and len(state.numbers) == self.total:
            return Decision(events=[RunFinished(steps=len(state.numbers), version="")])
        if isinstance(event, GenerationQuiesced) and state.stopping and event.step and event.step % 30 == 0:
            state.stopping = False
            return Decision(events=[RunPaused(step=event.step, session=state.session)])
        return NOTHING


class Pausing(Toy):
    """Has nothing to do but to pause when asked."""

    def initial(self):
        return 0

    def fold(self, state, event):
        return event.session if isinstance(event, RunStarted) else state

    def decide(self, state, event):
        if isinstance(event, StopRequested):
            return Decision(events=[RunPaused(step=0, session=state)])
        return NOTHING


CHAIN = [("source", Source), ("triple", Triple), ("sink", Sink)]


class SlowSource(Source):
    """Leaves time to be killed in."""

    async def perform(self, effect, performing):
        await anyio.sleep(0.01)
        return await super().perform(effect, performing)


def start(command, **options):
    return subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.DEVNULL, **options)


class WithHelper(Toy):
    """Starts a helper process in its own group, which ignores SIGTERM, and leaves it behind."""

    @asynccontextmanager
    async def running(self):
        command = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        helper = start(command)
        (self.context.run_dir / f"helper.{self.context.epoch}").write_text(str(helper.pid))
        yield


class Hanging(Toy):
    """Cannot be stopped politely: its effect is shielded."""

    effect_type = Emit

    def decide(self, state, event):
        if isinstance(event, RunStarted):
            return Decision(effects=[Emit(key="hang", first=0, count=0)])
        return NOTHING

    async def perform(self, effect, performing):
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1000)
        return []


class Stuck(Toy):
    """Its effect hangs in a thread that nothing can cancel, in its first life."""

    effect_type = Emit

    def decide(self, state, event):
        if isinstance(event, RunStarted) and not event.resumed:
            return Decision(effects=[Emit(key="stuck", first=0, count=0, stall_s=0.5)])
        return NOTHING

    async def perform(self, effect, performing):
        if performing.attempt == 1:
            await anyio.to_thread.run_sync(time.sleep, 1000)
        return []


class Mortal(Triple):
    """Dies whenever it is started."""

    @asynccontextmanager
    async def running(self):
        raise OSError("no room for me")
        yield


class Helpless(Toy):
    @asynccontextmanager
    async def running(self):
        raise Unrecoverable("this host has no toys; buy some")
        yield


class Hapless(Toy):
    def decide(self, state, event):
        raise ValueError("always the same mistake")


class Careless(Toy):
    """Breaks off its own parent's ties: a daemon in a session of its own."""

    @asynccontextmanager
    async def running(self):
        command = "import time; time.sleep(1000)"
        daemon = start(command, start_new_session=True)
        (self.context.run_dir / "daemon").write_text(str(daemon.pid))
        yield
