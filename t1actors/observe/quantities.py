"""How quantities, and text from outside, are written for people: the same in the display, the report and the tools."""

from __future__ import annotations


def one_line(text: str) -> str:
    """``text`` on one line, with everything that a terminal would obey written out: output of agents ends up here."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def duration(seconds: float) -> str:
    """0.4 s, 42 s, 4 min 12 s, 3 h 05 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def seconds(value_s: float) -> str:
    """For what is compared with a limit in seconds: 42 s, 120 s, and from ten minutes on as ``duration``."""
    return f"{round(value_s)} s" if value_s < 599.5 else duration(value_s)


def duration_range(low_s: float, high_s: float) -> str:
    """A range in one unit: 20-40 s, 2-3 min."""
    if high_s < 0.5:
        return "under 1 s"
    if high_s < 90:
        low, high, unit = round(low_s), round(high_s), "s"
    elif high_s < 5400:
        low, high, unit = round(low_s / 60), round(high_s / 60), "min"
    else:
        low, high, unit = round(low_s / 3600), round(high_s / 3600), "h"
    return f"{high} {unit}" if low == high else f"{low}-{high} {unit}"


def size(size_bytes: float) -> str:
    """512 B, 3.8 MB (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size_bytes) < 999.5:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 99.5 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def figure(value: float | None, digits: int = 3) -> str:
    """0.412, 1.3e-06, or a dash for what is not known."""
    if value is None:
        return "-"
    if value != 0 and abs(value) < 10 ** -(digits - 1):
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """With one digit; "-" for what was not measured."""
    return "-" if share is None else f"{100 * share:.1f} %"
