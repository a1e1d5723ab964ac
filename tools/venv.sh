# Finds a Python that is new enough and has it make `.venv`: sh tools/venv.sh [--for-runs] [EXTRA ...]
# A file and not a recipe with a shebang: just would write such a recipe into a temporary directory to run it there.
# -E: what PYTHONPATH and PYTHONHOME name may belong to another Python.
for python in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -E -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" -E tools/venv.py "$@"
    fi
done
echo "setup: t1actors needs Python 3.11 or later; here python3 is $(python3 --version 2>&1 || true)." >&2
echo "       Install one (Debian or Ubuntu: apt-get install python3.11 python3.11-venv; or: uv python install 3.12)" >&2
echo "       and run again." >&2
exit 1
