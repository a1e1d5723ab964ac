"""Runs every function test_* of tests/test_*.py; status 1 when one fails."""

import glob
import os
import runpy
import sys
import traceback

HOME = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HOME)
failed = 0
for path in sorted(glob.glob(f"{HOME}/tests/test_*.py")):
    for name, function in runpy.run_path(path).items():
        if name.startswith("test_"):
            try:
                function()
            except Exception:
                failed += 1
                print(f"FAIL {os.path.basename(path)} {name}")
                traceback.print_exc(limit=-1, file=sys.stdout)
            else:
                print(f"ok   {os.path.basename(path)} {name}")
sys.exit(1 if failed else 0)
