# Every recipe sets up `.venv` by itself (once; later calls find it done). `just --list` shows them.

set positional-arguments

[private]
default:
    @just --list

# Warm-started tiny model, trained with PPO on real shell tasks; ends with a report
run-cluster *args: (_venv)
    .venv/bin/t1 run --preset demo "$@"

# The same loop in under a minute
smoke *args: (_venv)
    .venv/bin/t1 run --preset smoke "$@"

# Re-execute one step of a recorded run and compare every digest
replay RUN STEP: (_venv)
    .venv/bin/t1 replay "$1" --step "$2"

# The tests
test *args: (_venv "test")
    OMP_NUM_THREADS=1 .venv/bin/python -m pytest "$@"

# The second tier: slow tests and tests against real engines
test-slow *args: (_venv "test")
    OMP_NUM_THREADS=1 .venv/bin/python -m pytest -m slow "$@"

# Style and types
lint: (_venv "dev")
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/pyright

# Measure what is claimed and write bench/RESULTS.md (docs/benchmarks.md)
bench *args: (_venv "test")
    .venv/bin/python -m bench "$@"

# Only set up
setup: (_venv "dev")

_venv *extras:
    #!/bin/sh
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            exec "$python" tools/venv.py "$@"
        fi
    done
    echo "setup: t1actors needs Python 3.11 or later; here python3 is $(python3 --version 2>&1 || true)." >&2
    echo "       Install one (Debian or Ubuntu: apt-get install python3.11 python3.11-venv) and run again." >&2
    exit 1
