"""Decides a built-in task's assertions and writes the report. This file is copied into every task as
``tests/check.py``.

It runs as ``python3 -I -S /tests/check.py``, once a trial, on the agent's sealed tree: so it is quick to start (only
``os`` and ``time``; ``json`` alone would double the cost) and trusts nothing it looks at: no link is followed, only
regular files are opened, never more than LARGEST_BYTES are read or unpacked. Every assertion is reported, with the
control assertion that passes whenever the checks work; the report is written once, at the end.
"""

from __future__ import annotations

import os
import time

LARGEST_BYTES = 1 << 20
ASSERTIONS = "/tests/assertions.json"
LOGS = "/logs/verifier"


def is_plain(path: str) -> bool:
    """Whether ``path`` is there and no part of it is a link."""
    return os.path.lexists(path) and os.path.realpath(path) == path


def is_file(path: str) -> bool:
    """A regular file, no link on the way."""
    return is_plain(path) and os.path.isfile(path)


def read(path: str) -> bytes | None:
    """The file's bytes; None unless it is a regular file of at most LARGEST_BYTES."""
    if not is_file(path):
        return None
    with open(path, "rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    return data if len(data) <= LARGEST_BYTES else None


def tar_names(data: bytes) -> list[str]:
    """Names in a tar archive, plain or gzip; of a bomb only the first LARGEST_BYTES count."""
    if data[:2] == b"\x1f\x8b":
        import zlib

        try:
            data = zlib.decompressobj(31).decompress(data, LARGEST_BYTES)
        except zlib.error:
            return []
    names: list[str] = []
    offset = 0
    while len(data) - offset >= 512 and data[offset] != 0:
        header = data[offset : offset + 512]
        try:
            size = int(header[124:136].split(b"\0")[0].strip() or b"0", 8)
        except ValueError:
            return []
        if size < 0:
            return []
        names.append(header[:100].split(b"\0")[0].decode("utf-8", "replace").rstrip("/"))
        offset += 512 + (size + 511) // 512 * 512
    return names


def text_holds(kind: str, text: str, value: str | int) -> bool:
    """Whether the assertion ``kind`` holds for a file's text."""
    if kind == "content":
        return text == value
    if kind == "contains":
        return str(value) in text
    if kind == "lacks":
        return str(value) not in text
    if kind == "first_line":
        return text.split("\n")[0] == value
    if kind == "last_line":
        return text.rstrip("\n").split("\n")[-1] == value
    if kind == "line_count":
        return text.count("\n") == value
    if kind == "number":
        digits = text[:-1]
        plain = text.endswith("\n") and digits.isascii() and digits.isdigit() and digits[0] != "0"
        return plain and len(digits) < 19 and int(digits) >= int(value)
    raise ValueError(f"{ASSERTIONS}: unknown kind of assertion {kind!r}")


def holds(kind: str, path: str, arguments: list[str | int]) -> bool:
    """Whether assertion ``kind`` holds for ``path``. A path that cannot be examined holds nothing."""
    try:
        if kind == "absent":
            return not os.path.lexists(path)
        if kind == "is_dir":
            return is_plain(path) and os.path.isdir(path)
        if kind == "is_file":
            return is_file(path)
        if kind == "entries":
            return is_plain(path) and len(os.listdir(path)) >= int(arguments[0])
        if kind == "mode_digit":
            return is_file(path) and os.lstat(path).st_mode >> (6 - 3 * int(arguments[0])) & 7 == arguments[1]
        data = read(path)
    except OSError:
        return False
    if data is None:
        return False
    if kind == "gzip":
        return data[:2] == b"\x1f\x8b"
    if kind == "tar_has":
        return arguments[0] in tar_names(data)
    return text_holds(kind, data.decode("utf-8", "replace"), arguments[0])


def control_holds() -> bool:
    """The checks tell a truth from a falsehood here."""
    return holds("is_file", os.path.realpath(ASSERTIONS), []) and not holds("is_dir", os.path.realpath(ASSERTIONS), [])


def report(results: list[tuple[str, bool]], start_ms: int, stop_ms: int) -> str:
    """CTRF. Ids are plain ASCII without quotes (the generator's), so they need no escaping."""
    passed = sum(ok for _, ok in results)
    tests = ",\n".join(
        f'{{"name": "{name}", "status": "{"passed" if ok else "failed"}", "duration": 0}}' for name, ok in results
    )
    return (
        '{"results": {"tool": {"name": "t1-check"}, "summary": '
        f'{{"tests": {len(results)}, "passed": {passed}, "failed": {len(results) - passed}, "pending": 0, '
        f'"skipped": 0, "other": 0, "start": {start_ms}, "stop": {stop_ms}}}, "tests": [\n{tests}\n]}}}}\n'
    )


def main() -> None:
    """Check every assertion and write both reports."""
    start_ms = time.time_ns() // 1_000_000
    # The file comes with the tests, from outside the agent's reach. It is JSON without true, false and null, so it is a
    # Python literal too.
    with open(ASSERTIONS, encoding="ascii") as file:
        spec = eval(file.read(), {"__builtins__": {}})
    root: str = spec["root"]
    results = [(a["id"], holds(a["kind"], f"{root}/{a['path']}", a["arguments"])) for a in spec["assertions"]]
    passed = sum(ok for _, ok in results)
    os.makedirs(LOGS, exist_ok=True)
    text = report([(spec["control"], control_holds()), *results], start_ms, time.time_ns() // 1_000_000)
    for name, content in (("ctrf.json", text), ("reward.txt", f"{passed / len(results):.6f}\n")):
        with open(f"{LOGS}/{name}.new", "w", encoding="ascii") as file:
            file.write(content)
        os.replace(f"{LOGS}/{name}.new", f"{LOGS}/{name}")
    print(f"{passed} of {len(results)} assertions passed")


if __name__ == "__main__":
    main()
