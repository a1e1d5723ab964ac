"""The terminal of the Terminus harness in a real sandbox, with a real tmux, through a ``SandboxPool`` alone."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from t1actors.config import TerminusConfig
from t1actors.harness.interface import HarnessError
from t1actors.harness.terminus.harness import TerminusHands
from t1actors.harness.terminus.program import Keys, Program
from t1actors.sandbox.admission import Admission, TokenBucket
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.interface import Limits, SandboxSpec
from t1actors.sandbox.pool import PooledSandbox, SandboxPool

pytestmark = [
    pytest.mark.usefixtures("host_makes_sandboxes"),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux on the host"),
]
PROMPT = "root@sandbox:/app#"
NEW, SCREEN = "New terminal output:\n", "Current terminal screen:\n"


class Terminal:
    """A terminal to type into; each turn has a key of its own."""

    def __init__(self, pool: SandboxPool, sandbox: PooledSandbox, hands: TerminusHands) -> None:
        self.pool = pool
        self.sandbox = sandbox
        self.hands = hands
        self.turns = 0

    async def start(self) -> str:
        request = self.hands.start("start")
        assert request is not None
        return self.hands.screen(await self.pool.run(self.sandbox.key, request))

    async def types(self, *keys: tuple[str, float], turn: int | None = None) -> str:
        """What is shown after ``keys``; ``turn``: of a turn that was taken already, the same again."""
        if turn is None:
            turn = self.turns
            self.turns += 1
        command = Program(keys=tuple(Keys(text, wait_s) for text, wait_s in keys)).text()
        request = self.hands.request(f"turn {turn}", command)
        assert request is not None
        return self.hands.observation(command, await self.pool.run(self.sandbox.key, request))


def use(tmp_path: Path, main: Callable[[Terminal], Awaitable[None]], *, turn_s: float = 30.0, **config: int) -> None:
    async def in_a_sandbox() -> None:
        backend = NamespaceBackend(tmp_path, name="terminal")
        pool = SandboxPool(backend, Admission(TokenBucket(rate_per_s=100, burst=8), max_live=4))
        hands = TerminusHands(TerminusConfig(**config), turn_s=turn_s)
        async with backend.running(), pool.running():
            spec = SandboxSpec(key="one", limits=Limits(command_s=hands.limit_s))
            async with pool.sandbox(spec) as sandbox:
                await main(Terminal(pool, sandbox, hands))

    trio.run(in_a_sandbox)


def test_a_turn_shows_what_it_printed_from_its_prompt_on(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        assert await terminal.start() == PROMPT
        assert await terminal.types(("echo one\n", 0.5)) == f"{NEW}{PROMPT} echo one\none\n{PROMPT}"
        two = f"{NEW}{PROMPT} echo two\ntwo\n{PROMPT} tty; stty size\n/dev/pts/0\n40 160\n{PROMPT}"
        assert await terminal.types(("echo two\n", 0.5), ("tty; stty size\n", 0.5)) == two
        assert await terminal.types() == f"{NEW}{PROMPT}"

    use(tmp_path, main)


def test_the_size_is_as_configured(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        assert "\n24 80\n" in await terminal.types(("stty size\n", 0.5))

    use(tmp_path, main, columns=80, rows=24)


def test_more_than_a_screen_is_shown_and_its_middle_left_out(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        lines = "\n".join(map(str, range(1, 401)))
        assert await terminal.types(("seq 400\n", 1.0)) == f"{NEW}{PROMPT} seq 400\n{lines}\n{PROMPT}"
        cut = await terminal.types(("seq 5000\n", 2.0))
        head, notice, tail = cut.removeprefix(NEW).partition("\n[... 13939 bytes are left out here ...]\n")
        assert notice, cut
        assert (len(head), len(tail)) == (5000, 5000)
        assert head.startswith(f"{PROMPT} seq 5000\n1\n2\n")
        assert tail.endswith(f"4999\n5000\n{PROMPT}")
        wide = await terminal.types(("printf 'é%.0s' $(seq 9000)\n", 1.0))
        assert "\ufffd" not in wide
        assert "é\n[... " in wide
        assert " ...]\né" in wide

    use(tmp_path, main)


def test_what_was_wiped_with_the_scroll_back_shows_as_the_screen(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        await terminal.types(("seq 30\n", 0.5))
        assert await terminal.types(("clear; echo new\n", 0.5)) == f"{NEW}{PROMPT} clear; echo new\nnew\n{PROMPT}"
        wiped = await terminal.types((r"printf '\e[2J\e[3J\e[H'; echo other", 0.1), ("\n", 0.5))
        assert wiped == f"{SCREEN}other\n{PROMPT}"
        assert await terminal.types(("echo two\n", 0.5)) == f"{NEW}{PROMPT} echo two\ntwo\n{PROMPT}"

    use(tmp_path, main)


VERBATIM = [
    "; x ;",
    "-l -t",
    "C-c C-c",
    "$HOME `id` \"'\\",
    "#{pane_pid}",
    "ends with;",
    "äöü 你好 é",
    "Enterprise",
    "--",
]


def test_keystrokes_are_typed_verbatim(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        await terminal.types(("cat > typed <<'END'\n", 0.3))
        for text in VERBATIM:
            await terminal.types((text, 0.1), ("\n", 0.1))
        await terminal.types(("END\n", 0.3))
        assert await terminal.sandbox.read_file("/app/typed") == "".join(f"{text}\n" for text in VERBATIM).encode()

    use(tmp_path, main)


def test_many_keystrokes_are_typed_in_parts(tmp_path: Path) -> None:
    text = "".join(f"line {number}; 'x' \"y\" é\n" for number in range(1500))

    async def main(terminal: Terminal) -> None:
        await terminal.start()
        await terminal.types(("cat > typed <<'END'\n" + text + "END\n", 5.0))
        assert await terminal.sandbox.read_file("/app/typed") == text.encode()

    use(tmp_path, main)


def test_the_name_of_a_key_is_that_key(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        assert (await terminal.types(("sleep 100\n", 0.5))).endswith("sleep 100")
        assert await terminal.types(("C-c", 0.5)) == f"{NEW}^C\n{PROMPT}"
        assert (await terminal.types(("cat\n", 0.3), ("C-d", 0.5))).endswith(PROMPT)
        await terminal.types(("echo on", 0.1), ("Left", 0.1), ("X", 0.1), ("Enter", 0.5))
        assert "\noXn\n" in await terminal.types(("C-p", 0.1), ("\n", 0.5))

    use(tmp_path, main)


def test_a_program_that_takes_the_whole_screen_shows_as_the_screen(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        await terminal.types(("echo before\n", 0.5))
        shown = await terminal.types((r"printf '\e[?1049h\e[H'; echo whole; read", 0.1), ("\n", 0.5))
        assert shown == f"{SCREEN}whole"
        after = await terminal.types(
            (r"printf '\e[?1049l'", 0.1), ("\n", 0.3), (r"printf '\e[?1049l'", 0.1), ("\n", 0.5)
        )
        assert after.startswith(NEW)
        assert after.endswith(PROMPT)
        assert "before" not in after

    use(tmp_path, main)


def test_a_turn_that_is_asked_for_again_is_not_typed_again(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        first = await terminal.types(("echo x >> file\n", 0.5))
        assert await terminal.types(("echo x >> file\n", 0.5), turn=0) == first
        assert await terminal.sandbox.read_file("/app/file") == b"x\n"

    use(tmp_path, main)


def test_after_the_shell_has_ended_there_is_a_new_one(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        ended = await terminal.types(("X=1; exit\n", 0.5), ("echo never\n", 0.5))
        assert ended == "The terminal's shell has ended. The next keystrokes go to a new one."
        fresh = await terminal.types(("echo $X back\n", 0.5))
        assert fresh == f"The terminal had ended; this is a new one.\n{NEW}{PROMPT} echo $X back\nback\n{PROMPT}"

    use(tmp_path, main)


@pytest.mark.slow
def test_a_terminal_that_does_not_answer_in_time_is_ended_and_the_next_is_new(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        silent = "The terminal did not answer and was ended. The next keystrokes go to a new one."
        assert await terminal.types(("kill -STOP $(pgrep -f '^tmux')\n", 0.5)) == silent
        again = f"The terminal had ended; this is a new one.\n{NEW}{PROMPT} echo again\nagain\n{PROMPT}"
        assert await terminal.types(("echo again\n", 0.5)) == again

    use(tmp_path, main, turn_s=1.0)


def test_nothing_of_the_terminal_is_in_the_sealed_tree(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.start()
        await terminal.types(("echo x > file\n", 0.5))
        archive = await terminal.sandbox.seal()
        assert b"file" in archive
        assert not [name for name in (b"tmux", b"t1-terminal", b"history") if name in archive]

    use(tmp_path, main)


def test_a_sandbox_without_tmux_is_named(tmp_path: Path) -> None:
    async def main(terminal: Terminal) -> None:
        await terminal.sandbox.run("PATH=/nowhere", limit_s=5)
        with pytest.raises(HarnessError, match="no tmux in the sandbox"):
            await terminal.start()

    use(tmp_path, main)
