"""`t1 serve`: a model behind an endpoint, from the command line."""

import json
import re
import shlex
import signal
import subprocess
import sys

import httpx2
import pytest

from t1actors.cli.main import main
from t1actors.log.filelog import FileLog


class Served:
    """`t1 serve` as a process; ``greeting`` is what it printed until it listened."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "t1actors", "serve", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.greeting = [self.process.stdout.readline() for _ in range(3)]
        assert self.greeting[2], self.process.communicate()[1]
        self.url = re.search(r"http://\S+(?=/sessions/NAME/v1)", self.greeting[0])[0]

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said


def test_a_session_goes_on_after_a_stop_and_the_log_shows_it(tmp_path, capsys):
    served = Served(tmp_path / "sessions", "--port", "0", "--max-new-tokens", "8")
    words = shlex.split(served.greeting[2].removeprefix("try: "))
    assert words[0] == "curl"
    url, body = words[1], json.loads(words[words.index("-d") + 1])
    answer = httpx2.post(url, json=body, timeout=60).json()
    status, said = served.stop()
    assert status == 0
    assert "to go on: t1 serve" in said

    served = Served(tmp_path / "sessions", "--port", "0", "--max-new-tokens", "8")
    assert served.greeting[1] == "sessions held: 1\n"
    body["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]
    again = httpx2.post(f"{served.url}/sessions/try/v1/chat/completions", json=body, timeout=60).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == answer["usage"]["total_tokens"]
    assert httpx2.post(f"{served.url}/sessions/try/reward", json={"reward": 0.5}).json()["joins"]["extension"] == 1
    assert served.stop(signal.SIGTERM)[0] == 0

    assert main(["log", "cat", str(tmp_path / "sessions")]) == 0
    kinds = [line.split()[3] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["SessionOpened", "TurnSampled", "TurnSampled", "RewardReported", "SessionClosed"]
    assert main(["log", "tail", str(tmp_path / "sessions"), "-n", "1"]) == 0
    assert "SessionClosed" in capsys.readouterr().out
    assert main(["log", "check", str(tmp_path / "sessions")]) == 1
    assert "an endpoint's sessions, and no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modell", "x"], "--modell"),
        (["--port", "99999"], "--port 99999"),
        (["--host", "0.0.0.0"], "--token-file"),
        (["--model", "builtin:none"], "builtin:none"),
        (["--max-calls", "0"], "--max-calls 0"),
        (["--format", "latin"], "latin"),
        (["--token-file", "missing"], "missing"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_loaded(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "place", *arguments]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "place").exists()


def test_a_directory_of_a_run_is_not_written_into(tmp_path, capsys):
    FileLog(tmp_path / "log").open_writer("supervisor").close()
    assert main(["serve", str(tmp_path)]) == 1
    assert "holds a run already" in capsys.readouterr().err
