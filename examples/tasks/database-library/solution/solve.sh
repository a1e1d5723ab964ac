#!/bin/bash
set -eu
cd /app
tar -czf torus.tgz tides
python3 - <<'LOAD'
import csv
import sqlite3


def rows(name):
    with open(f"tides/{name}.csv", newline="") as file:
        return list(csv.reader(file))[1:]


base = sqlite3.connect("library.db")
base.executescript("""
CREATE TABLE book(id INTEGER PRIMARY KEY, title TEXT NOT NULL, shelf TEXT NOT NULL);
CREATE TABLE member(id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL UNIQUE);
CREATE TABLE loan(id INTEGER PRIMARY KEY, book INTEGER NOT NULL REFERENCES book, member INTEGER NOT NULL REFERENCES member,
                  out TEXT NOT NULL, back TEXT);
CREATE INDEX loan_by_book ON loan(book, back);
CREATE VIEW overdue AS
  SELECT title, name, CAST(julianday('2031-05-01') - julianday(out) AS INTEGER) AS days
  FROM loan JOIN book ON book.id = loan.book JOIN member ON member.id = loan.member
  WHERE back IS NULL AND julianday('2031-05-01') - julianday(out) > 28
  ORDER BY days DESC;
""")
base.executemany("INSERT INTO book VALUES (?, ?, ?)", rows("books"))
base.executemany("INSERT INTO member VALUES (?, ?, ?)", rows("members"))
known = [{key for key, *_ in rows(name)} for name in ("books", "members")]
rejected = []
for key, book, member, out, back in {tuple(row) for row in rows("loans")}:
    if book not in known[0] or member not in known[1] or (back and back < out):
        rejected.append(int(key))
    else:
        base.execute("INSERT INTO loan VALUES (?, ?, ?, ?, ?)", (key, book, member, out, back or None))
base.commit()
with open("rejected.txt", "w") as file:
    file.writelines(f"{key}\n" for key in sorted(rejected))
with open("popular.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["title", "loans"])
    writer.writerows(base.execute(
        "SELECT title, count(*) FROM loan JOIN book ON book.id = loan.book GROUP BY title ORDER BY 2 DESC, 1 LIMIT 5"
    ))
base.close()
LOAD
