"""Runs every function test_* of the files named; status 1 when one fails, 2 when one cannot be loaded."""

import os
import runpy
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
failed = 0
for path in sys.argv[1:]:
    try:
        functions = runpy.run_path(path)
    except Exception as error:
        sys.exit(f"{path}: {error}")
    for name, function in functions.items():
        if name.startswith("test_"):
            try:
                function()
            except Exception as error:
                failed += 1
                print(f"FAIL {name} {error}")
            else:
                print(f"ok {name}")
sys.exit(1 if failed else 0)
