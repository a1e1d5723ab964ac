"""``python -m t1actors``: the ``t1`` command."""

import sys

from t1actors.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
