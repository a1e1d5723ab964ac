"""Builds a copy of /app in a scratch directory, each assertion one of its own, and looks at what the program does.

The copy is made, built and run by programs that these tests start, so that it belongs to whom they run as: not the grader.
"""

import glob
import math
import os
import stat
import subprocess
import tempfile

PATH = "/usr/local/bin:/usr/bin:/bin"
"""What an agent has: without the grader's own Python and pytest."""
TEXT = "Bees hum. Bees sleep, bees hum!\nfour-four\n"
COUNTED = "3 bees\n2 four\n2 hum\n1 sleep\n"
STRICT = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", '-DVERSION="x"', "-c"]


SAID = """virus: unused variable seen in main.c
virus: strlen is not declared in table.c
virus: strcpy is not declared in table.c
virus: unused parameter base in entropy.c
"""


def copied():
    place = f"{tempfile.mkdtemp()}/app"
    run(["cp", "-RP", "--preserve=mode,timestamps", "/app", place], "/")
    run(["rm", "-rf", f"{place}/build"], "/")
    return place


def run(command, place, text=None, **env):
    env = {"PATH": PATH, "LC_ALL": "C", **env}
    done = subprocess.run(command, cwd=place, env=env, input=text, capture_output=True, timeout=30, text=True)
    said = (done.stdout + done.stderr)[-200:]
    assert done.returncode == 0, f"{' '.join(command)}: status {done.returncode}: {said}"
    return done.stdout


def built():
    place = copied()
    run(["make"], place)
    assert os.path.isfile(f"{place}/build/tally"), "make made no build/tally"
    return place


def stamps(place):
    return {
        path: os.stat(path).st_mtime_ns
        for path in glob.glob(f"{place}/build/**", recursive=True)
        if os.path.isfile(path)
    }


def test_what_the_compiler_said():
    with open("/app/siri.txt") as file:
        assert file.read(1 << 16) == SAID


def test_version_file():
    with open("/app/VERSION") as file:
        assert file.read().strip() == "1.4.2"


def test_sources_compile_without_a_warning():
    place = copied()
    sources = sorted(glob.glob(f"{place}/src/*.c"))
    assert {os.path.basename(path) for path in sources} >= {"main.c", "table.c", "entropy.c"}
    for path in sources:
        run([*STRICT, path, "-o", "/dev/null"], place)


def test_make_builds_the_program():
    built()


def test_the_program_counts_words():
    place = built()
    shares = [3 / 8, 2 / 8, 2 / 8, 1 / 8]
    bits = -sum(share * math.log2(share) for share in shares)
    assert run([f"{place}/build/tally"], place, TEXT) == f"{COUNTED}entropy {bits:.3f}\n"


def test_the_program_tells_its_version():
    assert run([f"{built()}/build/tally", "--version"], "/") == "tally 1.4.2\n"
    place = copied()
    with open(f"{place}/VERSION", "w") as file:
        file.write("9.9.1\n")
    run(["make"], place)
    assert run([f"{place}/build/tally", "--version"], "/") == "tally 9.9.1\n"


def test_a_second_make_does_nothing():
    place = built()
    before = stamps(place)
    run(["make"], place)
    assert stamps(place) == before


def test_a_changed_header_is_noticed():
    place = built()
    before = stamps(place)
    os.utime(f"{place}/src/table.h", (2_000_000_000, 2_000_000_000))
    run(["make"], place)
    changed = {os.path.basename(path) for path, stamp in stamps(place).items() if before.get(path) != stamp}
    assert {"main.o", "table.o", "tally"} <= changed, f"made again: {sorted(changed)}"


def test_clean_removes_what_was_built():
    place = built()
    run(["make", "clean"], place)
    assert not os.path.lexists(f"{place}/build")


def test_install_puts_it_below_destdir():
    place = built()
    target = tempfile.mkdtemp()
    run(["make", "install", f"DESTDIR={target}"], place)
    path = f"{target}/usr/bin/tally"
    assert os.path.isfile(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755
    assert run([path], "/", "a\n").startswith("1 a\n")
