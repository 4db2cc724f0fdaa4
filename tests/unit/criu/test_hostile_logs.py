"""Logs that were made to take long: for each pattern of the catalogue, lines of pieces of what it fits."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from checkout import TESTS
from growth import grows_linearly, spend, spend_once

from crckpt.causes import Cause
from crckpt.causes.catalogue import CATALOGUE
from crckpt.criu.explain import explain, is_log

LOGS = TESTS / "data" / "logs"
LINES = [line.split("\t", 1) for line in (LOGS / "lines.tsv").read_text().splitlines()]
LONGEST = 1003
"""What of a line the catalogue's patterns see."""
MOST_LOOKS = 50
LONG = 1 << 22
"""Characters of a log. Its time is compared with that of a shorter one."""
LESS_LONG = 1 << 19
SLOW_PATTERNS = {
    "a failure without complaint",
    "begins of lines",
    "brackets",
    "lines of paths",
    "lines of processes",
    "many long lines",
    "no text",
}
"""A LESS_LONG log of these takes about as long as a LONG one of the others."""


def repeated(piece: str, length: int) -> str:
    return (piece * (length // len(piece) + 1))[:length]


def make_lines(format_line: Callable[[int], str], size: int) -> str:
    return "".join(format_line(number) for number in range(size // len(format_line(0))))


HARD_LOGS: dict[str, Callable[[int], str]] = {
    "one line": partial(repeated, "Error (criu/a.c:1): "),
    "a line without end": lambda size: f"(00.01) Error (criu/a.c:1): {'a' * size}",
    "many lines": partial(make_lines, lambda number: f"Error (criu/a.c:1): {number:06}\n"),
    "many long lines": partial(make_lines, lambda number: f"Error (criu/a.c:1): {number:06} {'x ' * 1000}\n"),
    "brackets": partial(repeated, "("),
    "times": partial(repeated, "(00.01) "),
    "begins of lines": partial(repeated, "(criu/a.c:"),
    "blanks": lambda size: f"(00.01){' ' * size}Error (",
    "many places": lambda size: (
        repeated("(00.01) Dumping task (pid: 812 comm: a)\n", size) + "\nError (criu/sk-netlink.c:77): netlink: x\n"
    ),
    "a long place": lambda size: (
        f"(00.01) Dumping path for 3 fd via self 17 [{'[' * size}\nError (criu/files-reg.c:1): x\n"
    ),
    "lines of processes": lambda size: repeated(f"{'(pid: 1 comm: ' * 292}\n", size) + NETLINK,
    "lines of paths": lambda size: (
        "Dumping task (pid: 1 comm: a)\n" + repeated(f"{'Dumping path for 3 fd via self 17 [' * 117}\n", size) + NETLINK
    ),
    "cut lines": partial(repeated, ">\n(00.01) pie: "),
    "wrapped lines": partial(repeated, "Error (criu/a.c:1): x\n    a"),
    "a failure without complaint": lambda size: repeated("Sockets collect procedure family ", size) + "Dumping FAILED.",
    "no text": lambda size: random.Random(28).randbytes(size).decode(errors="replace"),
}
NETLINK = "\nError (criu/sk-netlink.c:77): netlink: The socket has data to read\n"


def pieces(text: str) -> set[str]:
    """Begins, ends and middles, of which one alone makes a pattern begin again and again."""
    cuts = sorted({1, 2, *(len(text) * part // 8 for part in range(1, 8)), len(text) - 2, len(text) - 1})
    cuts = [cut for cut in cuts if 0 < cut < len(text)]
    middles = {text[first:last] for first, last in zip(cuts, cuts[2:], strict=False)}
    return {text[:cut] for cut in cuts} | {text[cut:] for cut in cuts} | middles


@pytest.mark.parametrize("cause", [cause for cause in CATALOGUE if cause.pattern], ids=lambda cause: str(cause.key))
def test_no_pattern_of_a_cause_is_slow_on_hostile_lines(cause: Cause) -> None:
    key, pattern = cause.key, cause.pattern
    texts = []
    for of, line in LINES:
        if of == key:
            found = re.search(pattern, line)
            texts += [repeated(piece, LONGEST) for piece in pieces(found.group() or line if found else line)]
    assert find_slow(pattern, texts) == []


def find_slow(pattern: str, texts: list[str]) -> list[str]:
    """Return the texts for which `pattern` takes too long, at each of several tries.

    Too long is what a search takes that looks MOST_LOOKS times from each character of a line to the line's end.
    """
    for _ in range(5):
        look = spend(partial(re.search, "x.*y", "x" * LONGEST))
        texts = [text for text in texts if spend_once(partial(re.search, pattern, text)) > MOST_LOOKS * look]
        if not texts:
            break
    return texts


def test_pattern_that_is_slow_on_hostile_lines_is_detected() -> None:
    text = "x" * LONGEST
    assert find_slow("x.*x.*y", [text]) == [text]


@pytest.mark.parametrize("name", HARD_LOGS)
def test_time_is_linear_in_the_length_of_a_log(name: str) -> None:
    def prepare(size: int) -> Callable[[], object]:
        text = HARD_LOGS[name](size)
        return lambda: (is_log(text), explain(text))

    assert grows_linearly(prepare, LESS_LONG if name in SLOW_PATTERNS else LONG)


def test_time_is_linear_in_the_number_of_known_lines() -> None:
    # Each line is another, and all are looked up.
    begins, ends = ([line[: len(line) // 2] for _, line in LINES], [line[-9:] for _, line in LINES])
    worst = [
        f"Error (criu/a.c:{number}): {repeated(piece, 9_000)}\n" for number, piece in enumerate([*begins, *ends], 1)
    ]
    assert grows_linearly(lambda size: partial(explain, "".join(worst[:: len(worst) // size])), len(worst))


def test_binary_logs_use_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    # The quotes are decoded before the log is read, in a string with four bytes for each character.
    quoted = b'{"a": "Error (criu/a.c:1): can\xe2\x80\x99t \\u0022x\\u0022\\n"}\n&quot;&#39;\n\xf0\x9f\x98\x80\n'
    # Lines that begin with a time are looked at least.
    lines = (b"(00.01) " + random.Random(29).randbytes(1000).replace(b"\n", b"") + b"\n") * (32 << 10)
    log.write_bytes(b"(00.01) Error (criu/a.c:1): x\n" + quoted + lines + quoted)
    # getrusage(2) would also count the memory of this process, from which the child is forked.
    code = """
import sys
from crckpt.cli.app import run
status = run(sys.argv[1:])
print(status, open("/proc/self/status").read(), file=sys.stderr)
"""
    command = [sys.executable, "-c", code, "explain", str(log)]
    error = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert error.startswith("4 ")
    peak = int(error.partition("VmHWM:")[2].split()[0])
    assert peak < 256 << 10
