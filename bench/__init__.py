"""Measurements of what is claimed. `python -m bench` runs all and writes `bench/RESULTS.md`; each module runs alone."""
