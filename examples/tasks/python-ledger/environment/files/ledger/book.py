"""A book is a list of transactions, each of which moves amounts between accounts.

    2031-02-01 rent
      expenses:rent   800.00
      assets:bank    -800.00
"""

import re

from ledger import money

HEAD = re.compile(r"(\d{4}-\d\d-\d\d) (.+)")


class Book:
    """``transactions`` are (date, title, [(account, cents)])."""

    def __init__(self):
        self.transactions = []

    def add(self, date, title, postings):
        self.transactions.append((date, title, list(postings)))

    def balance(self, account):
        """Cents in ``account``."""
        return sum(cents for _, _, postings in self.transactions for name, cents in postings if name == account)

    def accounts(self):
        """Names of all accounts, sorted."""
        return sorted({name for _, _, postings in self.transactions for name, _ in postings})


def read(text):
    """The book that ``text`` describes. Raises ``ValueError`` naming the line."""
    book, current = Book(), None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            words = line.split()
            if current is None or len(words) != 2:
                raise ValueError(f"line {number}: no posting: {line.strip()}")
            current[2].append((words[0], money.parse(words[1])))
            continue
        head = HEAD.fullmatch(line.rstrip())
        if head is None:
            raise ValueError(f"line {number}: no date and title: {line}")
        if current is not None:
            book.add(*current)
        current = (head[1], head[2], [])
    if current is not None:
        book.add(*current)
    return book
