"""A small world around hosts under test: journals that a test writes itself, crashes, virtual time."""

from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from t1actors.config import Config
from t1actors.events import ActorStarted, decode, encode
from t1actors.log.interface import CommitHead, JournalFailed
from t1actors.log.memory import MemoryLog
from t1actors.runtime.appending import inline
from t1actors.runtime.clock import virtual_clock
from t1actors.runtime.errors import leaves
from t1actors.runtime.host import host_actor


class Crash(JournalFailed):
    """The incarnation is dead: nothing it writes lands any more."""


class MortalLog:
    """A log whose every writer dies at a chosen append, before or after the frame landed; ``reborn`` gives new handles."""

    def __init__(self, log):
        self.log = log
        self.appends = 0
        self.dies_at = None
        self.lands = False
        self.dead = False

    def open_writer(self, name):
        return MortalWriter(self, self.log.open_writer(name))

    def open_reader(self, name, *, from_sequence=0):
        return self.log.open_reader(name, from_sequence=from_sequence)

    def watch(self):
        return self.log.watch()

    def journals(self):
        return self.log.journals()

    def kept_from(self, name):
        return self.log.kept_from(name)

    def snapshots(self, name):
        return self.log.snapshots(name)


class MortalWriter:
    def __init__(self, mortal, writer):
        self.mortal = mortal
        self.writer = writer
        self.name = writer.name
        self.epoch = writer.epoch

    @property
    def next_sequence(self):
        return self.writer.next_sequence

    @property
    def last_frame(self):
        return self.writer.last_frame

    def keep(self, snapshot):
        if not self.mortal.dead:
            self.writer.keep(snapshot)

    def append(self, head, events):
        if self.mortal.dead:
            raise Crash(f"{self.name}: dead")
        self.mortal.appends += 1
        if self.mortal.appends == self.mortal.dies_at:
            self.mortal.dead = True
            if self.mortal.lands:
                self.writer.append(head, events)
            raise Crash(f"{self.name}: dies at append {self.mortal.appends}")
        return self.writer.append(head, events)

    def close(self):
        self.writer.close()


class World:
    """A memory log in which the test plays everybody but the actor under test."""

    def __init__(self):
        self.log = MemoryLog()
        self.writers = {}

    def say(self, journal, *events, rests_on=None):
        """Appends ``events`` as one frame of ``journal``."""
        if journal not in self.writers:
            self.writers[journal] = self.log.open_writer(journal)
        self.writers[journal].append(CommitHead(vector=rests_on or {}), [encode(event) for event in events])

    def introduce(self, *actors):
        """ActorStarted for ``actors``."""
        self.say("supervisor", *(ActorStarted(actor=name, journal=name, epoch=1, pid=1) for name in actors))

    def frames(self, journal):
        reader = self.log.open_reader(journal)
        found = []
        while frames := reader.read():
            found.extend(frames)
        return found

    def events(self, journal, *kinds):
        found = [decode(raw) for frame in self.frames(journal) for raw in frame.events]
        return [event for event in found if not kinds or isinstance(event, kinds)]

    @asynccontextmanager
    async def hosting(self, factory, name="actor", *, crash=False, stalled=None):
        """Hosts ``factory`` for the length of the block: then a clean stop, or a crash (what is not durable is lost)."""
        mortal = MortalLog(self.log)
        actors = []

        def build(context):
            actors.append(factory(context))
            return actors[-1]

        async def host():
            try:
                await host_actor(
                    build,
                    name=name,
                    log=mortal,
                    blobs=None,
                    config=Config(),
                    run_dir=Path("run"),
                    clock=virtual_clock(),
                    appending=inline,
                    stalled=stalled,
                )
            except BaseExceptionGroup as group:
                if not (crash and mortal.dead and all(isinstance(error, Crash) for error in leaves(group))):
                    raise

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host)
            await settle()
            yield actors[0] if actors else None
            await settle()
            mortal.dead = crash
            tasks.cancel_scope.cancel()


async def settle(seconds=0.01):
    """Lets every task go as far as it can; costs ``seconds`` of virtual time."""
    await anyio.sleep(seconds)
