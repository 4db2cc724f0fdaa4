"""The log of a dump shows when CRIU froze the tree."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from crckpt.criu.engine import find_freeze

LOG = """(00.000000) CRIU run id = ded0ab22
(00.038125) cg-prop: Parsing controller "freezer"
(00.038447) Seized task 10002, state 1
(00.139792) Seized task 10003, state 1
(00.538447) Writing image inventory (version 1)
"""


def test_time_of_the_freeze_is_computed_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    before = time.monotonic()
    log.write_text(LOG)
    # If this process does not run for a moment between its two readings of the clock, the result is too early.
    assert before - 60 < find_freeze(log, 0.0) < time.monotonic() - 0.49
    # A clock that was set meanwhile gives no earlier time.
    earliest = time.monotonic()
    assert find_freeze(log, earliest) == earliest


@pytest.mark.parametrize("text", [None, "", "no log", "(00.1) Dumping\n"])
def test_log_without_a_freeze_line_uses_the_default(tmp_path: Path, text: str | None) -> None:
    log = tmp_path / "dump.log"
    if text is not None:
        log.write_text(text)
    assert find_freeze(log, 5.0) == 5.0
