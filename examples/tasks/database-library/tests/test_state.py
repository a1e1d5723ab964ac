"""Looks into /app/library.db, which is opened read-only, and compares it with what the tests' own copies of the files say."""

import collections
import csv
import datetime
import os
import sqlite3
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
DATABASE = "/app/library.db"
TODAY = datetime.date(2031, 5, 1)
STEPS = 1_000_000


def rows_of(name):
    with open(f"{HERE}/tides/{name}.csv", newline="") as file:
        return list(csv.reader(file))[1:]


BOOKS = [(int(key), title, shelf) for key, title, shelf in rows_of("books")]
MEMBERS = [(int(key), name, email) for key, name, email in rows_of("members")]
LOANS = {int(key): (int(book), int(member), out, back or None) for key, book, member, out, back in rows_of("loans")}
TITLES, NAMES = {key: title for key, title, _ in BOOKS}, {key: name for key, name, _ in MEMBERS}
GOOD = {
    key: loan
    for key, loan in LOANS.items()
    if loan[0] in TITLES and loan[1] in NAMES and (loan[3] is None or loan[3] >= loan[2])
}


def asked(query):
    assert os.path.isfile(DATABASE), f"{DATABASE} is not there"
    assert not os.path.islink(DATABASE), f"{DATABASE} is a link"
    connection = sqlite3.connect(f"file:{DATABASE}?mode=ro&immutable=1", uri=True)
    try:
        left = [STEPS]

        def count():
            left[0] -= 1000
            return left[0] < 0

        connection.set_progress_handler(count, 1000)
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def overdue():
    found = []
    for book, member, out, back in GOOD.values():
        days = (TODAY - datetime.date.fromisoformat(out)).days
        if back is None and days > 28:
            found.append((TITLES[book], NAMES[member], days))
    return found


def test_originals_are_packed():
    with open("/app/torus.tgz", "rb") as file:
        assert file.read(2) == b"\x1f\x8b", "not packed with gzip"
    with tarfile.open("/app/torus.tgz") as archive:
        for name in ("books", "members", "loans"):
            with open(f"{HERE}/tides/{name}.csv", "rb") as file:
                members = [m for m in archive.getmembers() if m.isreg() and m.name.endswith(f"tides/{name}.csv")]
                assert members, f"{name}.csv is not in it"
                assert archive.extractfile(members[0]).read(1 << 20) == file.read()


def test_books_and_members_are_loaded():
    assert sorted(asked("SELECT id, title, shelf FROM book")) == BOOKS
    assert sorted(asked("SELECT id, name, email FROM member")) == MEMBERS


def test_columns_have_their_types_and_keys():
    columns = {
        name: (kind.upper(), bool(needed or key)) for _, name, kind, needed, _, key in asked("PRAGMA table_info(loan)")
    }
    whole = ("INTEGER", True)
    assert columns == {"id": whole, "book": whole, "member": whole, "out": ("TEXT", True), "back": ("TEXT", False)}
    assert {(row[3], row[2]) for row in asked("PRAGMA foreign_key_list(loan)")} == {
        ("book", "book"),
        ("member", "member"),
    }
    assert any(row[2] for row in asked("PRAGMA index_list(member)")), "emails are not unique"


def test_loans_are_loaded_once_and_only_good_ones():
    found = {key: (book, member, out) for key, book, member, out in asked("SELECT id, book, member, out FROM loan")}
    assert found == {key: loan[:3] for key, loan in GOOD.items()}


def test_what_is_not_back_is_null():
    assert dict(asked("SELECT id, back FROM loan")) == {key: loan[3] for key, loan in GOOD.items()}


def test_rejected_loans_are_listed():
    with open("/app/rejected.txt") as file:
        assert file.read().split() == [str(key) for key in sorted(set(LOANS) - set(GOOD))]


def test_index_is_there_and_used():
    assert [row[2] for row in asked("PRAGMA index_info(loan_by_book)")] == ["book", "back"]
    plan = asked("EXPLAIN QUERY PLAN SELECT id FROM loan WHERE book = 3 AND back IS NULL")
    assert any("loan_by_book" in str(row) for row in plan), plan


def test_overdue_names_the_right_loans():
    assert sorted(row[:2] for row in asked("SELECT title, name FROM overdue")) == sorted(row[:2] for row in overdue())


def test_overdue_counts_days_most_first():
    assert [row[0] for row in asked("SELECT days FROM overdue")] == sorted((row[2] for row in overdue()), reverse=True)


def test_popular_books_are_listed():
    counts = collections.Counter(TITLES[loan[0]] for loan in GOOD.values())
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]
    with open("/app/popular.csv", newline="") as file:
        assert list(csv.reader(file)) == [["title", "loans"], *([title, str(count)] for title, count in best)]
