#!/bin/bash
set -eu
cd /app
for file in rules/*.txt; do mv "$file" "${file%.txt}.md"; done
python3 - <<'MEND'
money = open("ledger/money.py").read()
money = money.replace('"""Amounts are whole cents."""\n', '"""Amounts are whole cents."""\n\nimport re\n\n'
                      'AMOUNT = re.compile(r"([+-]?)([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\\.([0-9]{1,2}))?")\n')
money = money.replace("    return int(float(text) * 100)\n", '''    match = AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"no amount: {text!r}")
    cents = int(match[2].replace(",", "")) * 100 + int((match[3] or "0").ljust(2, "0"))
    return -cents if match[1] == "-" else cents
''')
open("ledger/money.py", "w").write(money)
book = open("ledger/book.py").read()
book = book.replace("\n\nclass Book:", '''

class Unbalanced(ValueError):
    """A transaction whose postings do not sum to zero."""


class Book:''', 1)
book = book.replace("    def add(self, date, title, postings):\n", '''    def add(self, date, title, postings):
        postings = list(postings)
        difference = sum(cents for _, cents in postings)
        if difference:
            raise Unbalanced(f"{date} {title}: the postings sum to {money.shown(difference)}, not to zero")
''')
book = book.replace('"""Cents in ``account``."""', '"""Cents in ``account`` and in what lies below it."""')
book = book.replace("if name == account)", 'if name == account or name.startswith(account + ":"))')
open("ledger/book.py", "w").write(book)
MEND
cat > ledger/__main__.py <<'MAIN'
"""The command line; see README.md."""

import sys

from ledger.book import read
from ledger.money import shown


def own(book, account):
    return sum(cents for _, _, postings in book.transactions for name, cents in postings if name == account)


def main(arguments):
    if len(arguments) not in (2, 3) or arguments[0] != "balance":
        sys.exit("ledger: usage: ledger balance FILE [ACCOUNT]")
    try:
        with open(arguments[1]) as file:
            book = read(file.read())
    except (OSError, ValueError) as error:
        sys.exit(f"ledger: {error}")
    if len(arguments) == 3:
        rows = [(book.balance(arguments[2]), arguments[2])]
    else:
        rows = [(own(book, account), account) for account in book.accounts()]
    for cents, account in rows:
        print(f"{shown(cents):>12}  {account}")


if __name__ == "__main__":
    main(sys.argv[1:])
MAIN
cat > tests/test_money.py <<'TESTS'
from ledger.money import parse


def test_cents_are_exact():
    assert parse("0.29") == 29
    assert parse("-1,234.50") == -123450


def test_more_than_two_decimals_are_refused():
    try:
        parse("1.234")
    except ValueError:
        return
    raise AssertionError("1.234 was taken")
TESTS
python3 run_tests.py
