"""The shell protocol: whatever a command does, its answer is its own output and status, and the trial goes on."""

import pytest

from t1actors.sandbox.interface import Limits
from t1actors.sandbox.observation import plain_text


def answer(result):
    return result.text, result.exit_code, result.shell_restarted


def test_state_of_the_shell_lasts_from_command_to_command(one):
    first, second = one(["x=5; cd /tmp; f() { echo f $x; }; export Y=1", "f; pwd; env | grep ^Y="])
    assert answer(first) == ("", 0, False)
    assert answer(second) == ("f 5\n/tmp\nY=1\n", 0, False)


def test_the_environment_is_fixed_and_small(one):
    (result,) = one(["env | sort; pwd; id -u; echo $0"], env=(("LEVEL", "3"),))
    lines = result.text.splitlines()
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in lines
    assert {"LC_ALL=C", "HOME=/root", "LEVEL=3"} <= set(lines)
    assert lines[-3:] == ["/app", "0", "bash"]
    assert {line.partition("=")[0] for line in lines[:-3]} <= {
        "PATH",
        "LC_ALL",
        "HOME",
        "LEVEL",
        "TERM",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    }


def test_a_forged_end_in_the_output_ends_nothing(one):
    forged = (
        "echo '2 0'; echo '1 0'; printf '\\n@@1:0@@\\n'; (echo '1 0' >&250) 2>/dev/null; sleep 0.1; echo real; (exit 7)"
    )
    first, second = one([forged, "echo next"])
    assert first.text.endswith("real\n")
    assert first.exit_code == 7
    assert answer(second) == ("next\n", 0, False)


def test_binary_output_and_nul_come_through_as_text(one):
    first, second = one(["printf 'a\\0b\\377c\\303\\244'", "printf x\0y"])
    assert first.text == "a\0b\ufffdcä"
    assert second.text == "xy"


def test_a_character_split_between_two_pieces_is_one_character(one):
    (result,) = one(["printf '\\303'; sleep 0.2; printf '\\244\\303'"])
    assert result.text == "ä\ufffd"


@pytest.mark.parametrize(
    ("command", "text", "code"),
    [
        ("cat <<EOF\nhello", "warning: here-document at line 1 delimited by end-of-file (wanted `EOF')\nhello\n", 0),
        ("echo 'open", "unexpected EOF while looking for matching `''\n", 2),
        ("echo )", "syntax error near unexpected token `)'\n`echo )'\n", 2),
        ("nosuch", "nosuch: command not found\n", 127),
        ("cd /nowhere", "cd: /nowhere: No such file or directory\n", 1),
        ("return 5", "", 5),
        ("break", "break: only meaningful in a `for', `while', or `until' loop\n", 0),
        ("exec >/dev/null 2>&1; echo lost", "", 0),
        ("cat; read x", "", 1),
        ("set -o noclobber; echo x", "x\n", 0),
        ("IFS=0123456789; (exit 12)", "", 12),
        ("", "", 0),
        ("exec 250>&-; echo x", "x\n", 0),
        ("trap 'echo debug' DEBUG; :", "debug\n", 0),
    ],
)
def test_a_strange_command_is_answered_and_leaves_the_shell_alive(one, command, text, code):
    first, second = one([command, "trap - DEBUG; exec 3>&1; echo still here"])
    assert answer(first) == (text, code, False)
    assert second.text.endswith("still here\n")
    assert (second.exit_code, second.shell_restarted) == (0, False)


@pytest.mark.parametrize(
    ("command", "text", "code"),
    [
        ("exit 3", "", 3),
        ("echo out; exit", "out\n", 0),
        ("set -e; false; echo unreached", "", 1),
        ("trap 'echo bye' EXIT; exit 4", "bye\n", 4),
        ("kill $$; sleep 5", "", 143),
        ("kill -9 $$", "", 137),
        ("exec echo replaced", "replaced\n", 0),
        ("exec sh -c 'exit 9'", "", 9),
    ],
)
def test_a_command_that_ends_the_shell_is_answered_with_its_status_and_a_new_shell_follows(one, command, text, code):
    first, second = one([f"cd /tmp; lost=1; {command}", 'echo "$lost$PWD"'])
    assert answer(first) == (text, code, True)
    assert answer(second) == ("/app\n", 0, False)


def test_a_shell_that_dies_between_commands_is_reported_by_the_next_one(one):
    _, second, third = one(["(sleep 0.2; kill -9 $$) & x=1", "sleep 0.5; echo $x", "echo $x"])
    assert second.shell_restarted
    assert answer(third) == ("\n", 0, False)


def test_a_gigabyte_of_output_is_bounded_and_counted(one):
    first, second = one(["head -c 1G /dev/zero", "echo next"], limits=Limits(output_bytes=10_000))
    assert len(first.text) == 10_000
    assert first.truncated_bytes == (1 << 30) - 10_000
    assert first.limit_hit == "output"
    assert first.exit_code == 0
    assert answer(second) == ("next\n", 0, False)


def test_a_background_writer_neither_delays_its_command_nor_writes_into_later_ones(one):
    first, second, third = one(
        [
            "(while :; do echo spam || exit; sleep 0.01; done) & echo started",
            "sleep 0.3; echo second",
            "jobs -r | grep -c Running",
        ]
    )
    assert first.text.replace("spam\n", "") == "started\n"
    assert answer(second) == ("second\n", 0, False)
    assert answer(third) == ("1\n", 0, False)


def test_a_server_that_logs_much_is_not_blocked_by_a_pipe_that_nobody_reads(one):
    # 1 MB is far more than a pipe holds.
    _, second = one(
        [
            "(head -c 1M /dev/zero; echo done >/tmp/done) &",
            "for i in $(seq 100); do [ -e /tmp/done ] && break; sleep 0.1; done; cat /tmp/done",
        ]
    )
    assert second.text == "done\n"


def test_a_sleeper_in_the_background_does_not_hold_its_command_back(one):
    # S1: if the answer waited for the sleeper, the limit would strike.
    (result,) = one(["sleep 60 & echo started"], limit_s=20.0)
    assert answer(result) == ("started\n", 0, False)
    assert not result.timed_out


def test_the_time_limit_kills_the_whole_tree_and_the_trial_goes_on(one):
    first, second = one(
        ["echo begun; setsid sleep 1000 & sleep 1000", "ps -eo comm= | sort | tr '\\n' ' '; echo $?"], limit_s=1.0
    )
    assert answer(first) == ("begun\n", 124, True)
    assert (first.timed_out, first.limit_hit) == (True, "time")
    assert "sleep" not in second.text
    assert second.exit_code == 0


@pytest.mark.parametrize(
    "command", ["set -n", "kill -STOP $$", "trap '' TERM INT HUP; while :; do :; done", "enable -n echo"]
)
def test_a_shell_that_stops_answering_ends_at_the_time_limit(one, command):
    *_, last, after = one([command, "echo x", "echo after"], limit_s=0.5)
    assert after.text == "after\n" or last.text == "x\n"


def test_output_comes_in_timed_pieces(one):
    (result,) = one(["echo a; sleep 0.3; echo b"])
    assert "".join(piece.data for piece in result.output) == result.text == "a\nb\n"
    assert [piece.data for piece in result.output] == ["a\n", "b\n"]
    assert 0 <= result.output[0].at_s < result.output[1].at_s <= result.seconds


def test_the_shells_own_prefixes_are_taken_off_and_nothing_else():
    assert plain_text("/dev/.t1/c: line 12: foo: command not found\n") == "foo: command not found\n"
    assert plain_text("x/dev/.t1/c: eval: line 1: syntax error\n") == "xsyntax error\n"
    assert plain_text("main.c: line 3: bad\nsh: 1: no\n") == "main.c: line 3: bad\nsh: 1: no\n"


def test_many_commands_of_odd_sizes_come_back_whole(one):
    sizes = [0, 1, 4095, 4096, 65_536, 200_000]
    results = one([f"head -c {size} /dev/zero | tr '\\0' x" for size in sizes], limits=Limits(output_bytes=1 << 20))
    assert [len(result.text) for result in results] == sizes


def test_a_long_command_arrives_whole(one):
    (result,) = one(["x='" + "y" * 1_000_000 + "'; echo ${#x}"])
    assert result.text == "1000000\n"
