from ledger.book import read

TEXT = """# the first month
2031-01-31 wages
  assets:bank    2,000.00
  income:wages  -2,000.00

2031-02-01 rent
  expenses:rent   800.10
  assets:bank    -800.10
"""


def test_accounts_are_sorted():
    assert read(TEXT).accounts() == ["assets:bank", "expenses:rent", "income:wages"]


def test_balance_of_one_account():
    assert read(TEXT).balance("expenses:rent") == 80010


def test_balance_of_a_group():
    assert read(TEXT).balance("expenses") == 80010
