"""Starts a copy of the service with its own scripts and talks to it; what the agent's own run left is looked at in /app.

The copy is made, run, looked for and ended by programs that these tests start: it belongs to whom they run as, not to the
grader, who cannot look into it.
"""

import configparser
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time

PATH = "/usr/local/bin:/usr/bin:/bin"
"""What an agent has: without the grader's own Python and pytest."""
PORT = 8117
TAKEN = [1131, 1560, 2092, 2973, 4054, 4907, 5482, 5782, 5878, 5971, 5985, 6149, 8469, 8527]

FIND = """
import os, signal, sys
place, what = sys.argv[1:]
for name in os.listdir("/proc"):
    try:
        if name.isdigit() and int(name) != os.getpid():
            with open(f"/proc/{name}/cmdline", "rb") as file:
                here = place.encode() in file.read() or os.readlink(f"/proc/{name}/cwd").startswith(place)
            with open(f"/proc/{name}/stat") as file:
                zombie = file.read().rpartition(")")[2].split()[0] == "Z"
            if here and not zombie:
                print(name) if what == "print" else os.kill(int(name), signal.SIGKILL)
    except OSError:  # it has ended, or is the grader's
        pass
"""


@contextlib.contextmanager
def started():
    """A running copy in a scratch directory; nothing of it runs afterwards."""
    place = f"{tempfile.mkdtemp()}/lantern"
    program("cp", "-RP", "--preserve=mode,timestamps", "/app", place)
    program("rm", "-f", f"{place}/lantern.pid", f"{place}/data/store.json")
    try:
        script(place, "start.sh")
        yield place
    finally:
        program("python3", "-c", FIND, place, "kill")
        wait_for(lambda: not processes_of(place))


def script(place, name):
    assert os.path.isfile(f"{place}/{name}"), f"{name} is not there"
    with tempfile.TemporaryFile() as said:  # a service holds on to what it was given: no pipe would end
        done = subprocess.run(
            ["bash", f"{place}/{name}"],
            cwd="/",
            env={**os.environ, "PATH": PATH},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            timeout=20,
        )
        said.seek(0)
        assert done.returncode == 0, f"{name}: status {done.returncode}: {said.read(300)!r}"


def program(*command):
    return subprocess.run(command, cwd="/", check=True, capture_output=True, timeout=20, text=True).stdout


def processes_of(place):
    return [int(number) for number in program("python3", "-c", FIND, place, "print").split()]


def wait_for(condition, limit_s=5.0):
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def ask(*lines):
    with socket.create_connection(("127.0.0.1", PORT), timeout=5) as connection, connection.makefile("rw") as talk:
        answers = []
        for line in lines:
            talk.write(f"{line}\n")
            talk.flush()
            answers.append(talk.readline().rstrip("\n"))
        return answers


def pid_of(place):
    with open(f"{place}/lantern.pid") as file:
        return int(file.read())


def test_taken_ports_are_sorted():
    with open("/app/rafel.txt") as file:
        assert [int(line) for line in file.read(1 << 16).splitlines()] == TAKEN


def test_data_folder_is_there():
    assert os.path.isdir("/app/data")


def test_configuration_says_what_was_asked_for():
    parser = configparser.ConfigParser()
    with open("/app/lantern.ini") as file:
        parser.read_file(file)
    found = dict(parser["lantern"])
    assert found == {"address": "127.0.0.1", "port": str(PORT), "data": "data", "limit": "100"}


def test_start_returns_when_it_answers():
    with started():
        assert ask("PING") == ["PONG"]


def test_it_listens_on_the_configured_address_only():
    with started():
        assert ask("PING") == ["PONG"]
        with open("/proc/net/tcp") as file:
            rows = [line.split() for line in file.read().splitlines()[1:]]
        listening = {row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{PORT:04X}")}
        assert listening == {f"0100007F:{PORT:04X}"}, f"it listens at {listening}"


def test_a_missing_key_is_none_and_the_service_goes_on():
    with started():
        assert ask("GET nothing") == ["NONE"]
        assert ask("PING", "GET nothing", "COUNT") == ["PONG", "NONE", "0"]


def test_a_value_keeps_its_spaces():
    with started():
        assert ask("SET a one  two three", "GET a") == ["OK", "VALUE one  two three"]


def test_what_was_set_is_there_after_a_restart():
    with started() as place:
        assert ask("SET kept yes") == ["OK"]
        script(place, "stop.sh")
        script(place, "start.sh")
        assert ask("GET kept", "COUNT") == ["VALUE yes", "1"]


def test_a_second_start_changes_nothing():
    with started() as place:
        before = pid_of(place)
        script(place, "start.sh")
        assert pid_of(place) == before
        assert ask("PING") == ["PONG"]


def test_stop_leaves_no_process_and_no_pid_file():
    with started() as place:
        process = pid_of(place)
        assert process in processes_of(place)
        script(place, "stop.sh")
        assert process not in processes_of(place)
        assert not os.path.lexists(f"{place}/lantern.pid")


def test_the_lamp_was_lit_through_the_service():
    with open("/app/data/store.json") as file:
        assert json.load(file)["lamp"] == "lit and watched"
    assert not os.path.lexists("/app/lantern.pid")
