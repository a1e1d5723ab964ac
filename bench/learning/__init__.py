"""Evidence that what rises is learning, and what each part of the recipe buys. `python -m bench.learning --list`."""
