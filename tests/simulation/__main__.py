"""``python -m tests.simulation --seed 812``: one simulated run again, with all that happened in it."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext

from tests.simulation.oracle import Fault
from tests.simulation.planted import PLANTED as ALL
from tests.simulation.run import simulate

PLANTED = {planted.name: planted for planted in ALL}


def how_many_seeds() -> int:
    """Prints, of each planted bug, the first seed that finds it."""
    missed = 0
    for planted in ALL:
        started_s = time.perf_counter()
        for seed in range(planted.seeds):
            try:
                simulate(seed, planted=planted.planted)
            except Fault as fault:
                print(
                    f"{planted.name}: seed {seed}, {time.perf_counter() - started_s:.0f} s: {str(fault)[:160]}",
                    flush=True,
                )
                break
        else:
            missed += 1
            print(f"{planted.name}: not found in {planted.seeds} seeds", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one")
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FROM", "TO"), help="all of these")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="with this bug in the code")
    parser.add_argument("--all-planted", action="store_true", help="how many seeds it takes to find each planted bug")
    arguments = parser.parse_args()
    if arguments.all_planted:
        return how_many_seeds()
    seeds = [arguments.seed] if arguments.seed is not None else range(*(arguments.seeds or (0, 20)))
    broken = 0
    for seed in seeds:
        started_s = time.perf_counter()
        try:
            outcome = simulate(seed, planted=PLANTED[arguments.planted].planted if arguments.planted else nullcontext)
        except Fault as fault:
            broken += 1
            print(f"seed {seed}: {fault}")
            for note in getattr(fault, "__notes__", []):
                print(f"    {note}")
            continue
        seconds = time.perf_counter() - started_s
        print(
            f"seed {seed}: {outcome.seconds:.0f} virtual s in {seconds:.2f} s, {outcome.events} events, "
            f"{len(outcome.deaths)} deaths, {outcome.sessions} sessions, {outcome.variant}, {outcome.digest[:16]}"
        )
        if arguments.seed is not None:
            for line in [*map(str, outcome.planned), *outcome.deaths, *outcome.failed]:
                print(f"    {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
