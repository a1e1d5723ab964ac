"""The command line; see README.md."""

import sys


def main():
    sys.exit("not written yet")


if __name__ == "__main__":
    main()
