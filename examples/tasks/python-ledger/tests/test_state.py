"""Runs a copy of the agent's package, each question in a process of its own: nothing of the agent's is imported here.

The copy is made by a program too, so that it belongs to whom the agent's programs run as: not the grader.
"""

import json
import os
import shutil
import subprocess
import tempfile

PATH = "/usr/local/bin:/usr/bin:/bin"
"""What an agent has: without the grader's own Python and pytest."""
OLD_PARSE = """
def parse(text):
    return int(float(text) * 100)
"""
BOOK = """2031-01-31 wages
  assets:bank    2,000.00
  income:wages  -2,000.00
2031-02-01 rent
  expenses:rent   800.10
  assets:bank    -800.10
2031-02-02 old
  assetsold   1.00
  assets      5.00
  income     -6.00
"""
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ledger import book, money
question = json.load(sys.stdin)
def answer(call):
    try:
        return call()
    except Exception as error:
        return [[kind.__name__ for kind in type(error).__mro__], str(error)]
if question[0] == "parse":
    answers = [answer(lambda: money.parse(text)) for text in question[1:]]
else:
    answers = [answer(lambda: [book.read(question[1]).balance(name) for name in question[2:]])]
print("\\n" + json.dumps(answers))
"""


def copied():
    place = f"{tempfile.mkdtemp()}/app"
    assert run(["cp", "-RP", "--preserve=mode,timestamps", "/app", place], "/").returncode == 0
    return place


def run(command, place, text=""):
    env = {"PATH": PATH, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=place, env=env, input=text, capture_output=True, timeout=20, text=True)


def ask(*question):
    place = copied()
    done = run(["python3", "-c", ASK, place], "/", json.dumps(question))
    assert done.returncode == 0, done.stderr[-300:]
    return json.loads(done.stdout.splitlines()[-1])


def balance(*arguments, text=BOOK):
    place = copied()
    if text is not None:
        with open(f"{place}/book.txt", "w") as file:
            file.write(text)
    return run(["python3", "-m", "ledger", "balance", "book.txt", *arguments], place)


def test_documents_are_markdown():
    assert sorted(os.listdir("/app/rules")) == ["accounts.md", "format.md"]
    with open("/app/rules/accounts.md") as file:
        assert "assets:bank:savings" in file.read()


def test_amounts_are_exact():
    texts = ["0.29", "1.13", "8.20", "-4.35", "90071992547409.93"]
    assert ask("parse", *texts) == [29, 113, 820, -435, 9007199254740993]


def test_amounts_take_separators_and_signs():
    assert ask("parse", "1,234.50", "-1,234,567.00", "+3", "7.5") == [123450, -123456700, 300, 750]


def test_what_is_no_amount_is_refused():
    texts = ["", "1.234", "1.2.3", "1,23", ",100", "1,2345", "abc", "--1", "nan", "1e3", "1 000"]
    for text, answer in zip(texts, ask("parse", *texts), strict=True):
        assert isinstance(answer, list), f"{text!r} was taken for {answer}"
        assert "ValueError" in answer[0], f"{text!r}: {answer[0][0]}"


def test_a_group_has_the_balance_of_what_lies_below_it():
    assert ask("balance", BOOK, "assets", "assets:bank", "expenses", "income", "nothing") == [
        [120490, 119990, 80010, -200600, 0]
    ]


def test_an_unbalanced_transaction_is_refused_with_its_title_and_difference():
    spoiled = BOOK.replace("-800.10", "-2,800.00")
    kinds, text = ask("balance", spoiled, "assets")[0]
    assert kinds[0] == "Unbalanced"
    assert "ValueError" in kinds
    assert "rent" in text
    assert "1,999.90" in text


def test_balance_command_prints_a_table():
    rows = [("5.00", "assets"), ("1,199.90", "assets:bank"), ("1.00", "assetsold"), ("800.10", "expenses:rent"),
            ("-6.00", "income"), ("-2,000.00", "income:wages")]  # fmt: skip
    done = balance()
    assert done.returncode == 0, done.stderr[-300:]
    assert done.stdout == "".join(f"{amount:>12}  {account}\n" for amount, account in rows)


def test_balance_command_of_one_account():
    done = balance("assets")
    assert done.returncode == 0, done.stderr[-300:]
    assert done.stdout == f"{'1,204.90':>12}  assets\n"


def test_balance_command_says_what_is_wrong():
    for done in (balance(text=None), balance(text=BOOK.replace("-6.00", "-7.00"))):
        assert done.returncode == 1
        assert done.stderr.startswith("ledger: ")
        assert len(done.stderr.splitlines()) == 1


def test_own_tests_tell_the_old_parse_from_the_new():
    place = copied()
    assert os.path.isfile(f"{place}/tests/test_money.py"), "tests/test_money.py is not there"
    shutil.copyfile("/tests/runner.py", f"{place}/run_tests.py")
    done = run(["python3", "run_tests.py", "tests/test_money.py"], place)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-300:]
    assert "ok " in done.stdout, "it holds no tests"
    with open(f"{place}/ledger/money.py", "a") as file:
        file.write(OLD_PARSE)
    assert run(["python3", "run_tests.py", "tests/test_money.py"], place).returncode == 1


def test_what_worked_works():
    assert ask("parse", "12", "-3.50") == [1200, -350]
    assert ask("balance", "2031-01-01 a\n  x  1.50\n  y  -1.50\n", "x", "y", "z") == [[150, -150, 0]]
