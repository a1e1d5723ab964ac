# Every recipe sets up `.venv` by itself (once; later calls find it done). `just --list` shows them.

set positional-arguments

# What another environment left in these variables is not for this one.
bin := "env -u PYTHONPATH -u PYTHONHOME .venv/bin"

[private]
default:
    @just --list

# Warm-started tiny model, trained with PPO on real shell tasks; ends with a report. `--resume RUN` goes on with a stopped run
[no-exit-message]
run-cluster *args: (_venv "--for-runs")
    @{{bin}}/t1 run "$@"

# The same loop in under a minute
[no-exit-message]
smoke *args: (_venv "--for-runs")
    @{{bin}}/t1 run --preset smoke "$@"

# Re-execute one step of a recorded run and compare every digest
[no-exit-message]
replay RUN STEP: (_venv)
    @{{bin}}/t1 replay "$1" --step "$2"

# The tests
test *args: (_venv "test")
    OMP_NUM_THREADS=1 {{bin}}/python -m pytest "$@"

# The second tier: slow tests and tests against real engines
test-slow *args: (_venv "test")
    OMP_NUM_THREADS=1 {{bin}}/python -m pytest -m slow "$@"

# Style and types
lint: (_venv "dev")
    {{bin}}/ruff check .
    {{bin}}/ruff format --check .
    {{bin}}/pyright

# Measure what is claimed and write bench/RESULTS.md (docs/benchmarks.md)
bench *args: (_venv "test")
    {{bin}}/python -m bench "$@"

# Measure that what rises is learning, and what each part of it buys (docs/experiments.md): 20 minutes and more
learning *args: (_venv "test")
    OMP_NUM_THREADS=1 .venv/bin/python -m bench.learning "$@"

# Only set up
setup: (_venv "dev")

_venv *extras:
    @sh tools/venv.sh "$@"
