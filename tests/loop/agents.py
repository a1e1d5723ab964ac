"""Runs whose trials are driven by the example agent, by processes under a supervisor."""

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "agents" / "shell_agent.py"
SETS = (
    "rollout.harness=command",
    f'rollout.command="{sys.executable} {EXAMPLE}"',
    "rollout.turn_slack=0",
    "schedule.evaluate=false",
)
