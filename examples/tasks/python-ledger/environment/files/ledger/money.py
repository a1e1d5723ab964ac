"""Amounts are whole cents."""


def parse(text):
    """Cents of an amount such as -12.50."""
    return int(float(text) * 100)


def shown(cents):
    """The amount as text: 123450 is 1,234.50."""
    sign = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    return f"{sign}{whole:,}.{rest:02d}"
