"""Logs that were made to take long: for each pattern of the catalogue, lines of pieces of what it fits."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from places import TESTS

from crckpt.causes.catalogue import CATALOGUE
from crckpt.causes.cause import Cause
from crckpt.criu.explain import explain, is_log

LOGS = TESTS / "data" / "logs"
LINES = [line.split("\t", 1) for line in (LOGS / "lines.tsv").read_text().splitlines()]
LONGEST = 1003
"""What of a line the catalogue's patterns see."""
PATTERN_S = 0.04
WHOLE_S = 5.0
HARD = {
    "one line": "Error (criu/a.c:1): " * 200_000,
    "a line without end": "(00.01) Error (criu/a.c:1): " + "a" * 4_000_000,
    "many lines": "".join(f"Error (criu/a.c:1): {number}\n" for number in range(150_000)),
    "many long lines": "".join(f"Error (criu/a.c:1): {number} {'x ' * 1000}\n" for number in range(2_000)),
    "brackets": "(" * 4_000_000,
    "times": "(00.01) " * 500_000,
    "begins of lines": "(criu/a.c:" * 400_000,
    "blanks": "(00.01)" + " " * 4_000_000 + "Error (",
    "many places": "(00.01) Dumping task (pid: 812 comm: a)\n" * 100_000 + "Error (criu/sk-netlink.c:77): netlink: x\n",
    "a long place": f"(00.01) Dumping path for 3 fd via self 17 [{'[' * 4_000_000}\nError (criu/files-reg.c:1): x\n",
    "lines of processes": f"{'(pid: 1 comm: ' * 292}\n" * 1_000
    + "Error (criu/sk-netlink.c:77): netlink: The socket has data to read\n",
    "lines of paths": (
        "Dumping task (pid: 1 comm: a)\n"
        + f"{'Dumping path for 3 fd via self 17 [' * 117}\n" * 1_000
        + "Error (criu/sk-netlink.c:77): netlink: The socket has data to read\n"
    ),
    "cut lines": ">\n(00.01) pie: " * 300_000,
    "wrapped lines": "Error (criu/a.c:1): x\n    a" * 150_000,
    "a failure without complaint": "Sockets collect procedure family " * 100_000 + "Dumping FAILED.",
    "no text": random.Random(28).randbytes(4_000_000).decode(errors="replace"),
}


def spent(work: Callable[[], object], enough: float = 0.0) -> float:
    """Seconds of this processor. Those of a second time, if fewer, unless the first took less than `enough`."""
    first = spent_once(work)
    # Others are at work, too: what takes long may take less again.
    return first if first < enough else min(first, spent_once(work))


def spent_once(work: Callable[[], object]) -> float:
    """Seconds of this processor."""
    before = time.process_time()
    work()
    return time.process_time() - before


def pieces(text: str) -> set[str]:
    """Begins, ends and middles, of which one alone makes a pattern begin again and again."""
    cuts = sorted({1, 2, *(len(text) * part // 8 for part in range(1, 8)), len(text) - 2, len(text) - 1})
    cuts = [cut for cut in cuts if 0 < cut < len(text)]
    middles = {text[first:last] for first, last in zip(cuts, cuts[2:], strict=False)}
    return {text[:cut] for cut in cuts} | {text[cut:] for cut in cuts} | middles


def repeated(piece: str, length: int) -> str:
    return (piece * (length // len(piece) + 1))[:length]


@pytest.mark.parametrize("cause", [cause for cause in CATALOGUE if cause.pattern], ids=lambda cause: str(cause.key))
def test_no_pattern_takes_long_for_a_line(cause: Cause) -> None:
    key, pattern = cause.key, cause.pattern
    for of, line in LINES:
        if of != key:
            continue
        found = re.search(pattern, line)
        for piece in pieces(found.group() or line if found else line):
            text = repeated(piece, LONGEST)
            assert spent(partial(re.search, pattern, text), PATTERN_S) < PATTERN_S, piece


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_no_log_takes_long(text: str) -> None:
    assert spent(lambda: (is_log(text), explain(text)), WHOLE_S) < WHOLE_S


def test_pieces_of_all_that_is_known_take_no_long_time() -> None:
    # Each line is another, and all are looked up.
    worst = [
        f"Error (criu/a.c:{n}): {repeated(piece, 9_000)}\n"
        for n, (_, line) in enumerate(LINES)
        for piece in (line[: len(line) // 2], line[-9:])
    ]
    assert spent(lambda: explain("".join(worst)), WHOLE_S) < WHOLE_S


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_twice_the_log_takes_at_most_about_twice_the_time(text: str) -> None:
    def takes_longer() -> bool:
        twice = spent_once(partial(explain, text[:1_000_000]))
        return twice >= 0.3 and twice >= 3 * spent_once(partial(explain, text[:500_000])) + 0.3

    assert not (takes_longer() and takes_longer())


def test_bytes_that_are_no_text_take_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    # What is changed before the log is read, in a text that takes four bytes for each character.
    quoted = b'{"a": "Error (criu/a.c:1): can\xe2\x80\x99t \\u0022x\\u0022\\n"}\n&quot;&#39;\n'
    log.write_bytes(b"(00.01) Error (criu/a.c:1): x\n" + quoted + random.Random(29).randbytes(32 << 20) + quoted)
    # Not by getrusage(2): that counts what this process has, too, from which the child was forked.
    code = """
import sys
from crckpt.cli.app import run
status = run(sys.argv[1:])
print(status, open("/proc/self/status").read(), file=sys.stderr)
"""
    command = [sys.executable, "-c", code, "explain", str(log)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert said.startswith("0 ")
    peak = int(said.partition("VmHWM:")[2].split()[0])
    assert peak < 256 << 10
