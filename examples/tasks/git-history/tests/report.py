"""Calls every test_* function of test_state.py and writes what came of them: ctrf.json, and reward.txt with the share.

The functions are plain ones with asserts, so pytest runs them, too. The assertion `control` passes whenever all were called.
"""

import json
import os
import runpy
import time
import traceback

LOGS = "/logs/verifier"


def outcome(function):
    """(passed, what was wrong)."""
    try:
        function()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return False, f"{type(error).__name__}: {error} (line {where.lineno}: {where.line})"
    return True, ""


def main():
    started = time.time()
    names = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_state.py"))
    tests = []
    for name, function in names.items():
        if name.startswith("test_") and callable(function):
            passed, message = outcome(function)
            tests.append({"name": name, "status": "passed" if passed else "failed", "duration": 0, "message": message})
            print("ok  " if passed else "FAIL", name, message[:300])
    passed = sum(test["status"] == "passed" for test in tests)
    share = passed / max(1, len(tests))
    tests.append({"name": "control", "status": "passed", "duration": 0})
    summary = {
        "tests": len(tests),
        "passed": passed + 1,
        "failed": len(tests) - passed - 1,
        "pending": 0,
        "skipped": 0,
        "other": 0,
        "start": int(started * 1000),
        "stop": int(time.time() * 1000),
    }
    os.makedirs(LOGS, exist_ok=True)
    report = {"results": {"tool": {"name": "report.py"}, "summary": summary, "tests": tests}}
    for name, text in (("ctrf.json", json.dumps(report)), ("reward.txt", f"{share:.6f}\n")):
        with open(f"{LOGS}/{name}.new", "w") as file:
            file.write(text)
        os.replace(f"{LOGS}/{name}.new", f"{LOGS}/{name}")


if __name__ == "__main__":
    main()
