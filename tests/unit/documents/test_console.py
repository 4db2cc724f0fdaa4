"""Console blocks are read, compared and refreshed."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents.console import Step, StepResult, difference, read_steps, refresh

PAGE = """
<!-- file: /srv/a.py -->
```python
print(1)
```
<!-- run: sleep 0 -->
```console
# crckpt dump 7 \\
>   job
0123456789ab  job: frozen 10 ms, 1.0 MiB
the tree keeps running
$ true
```
<!-- not run: it would stop the host -->
```console
# halt
```
"""


def test_page_of_the_documentation_is_split_into_steps() -> None:
    assert list(read_steps(PAGE)) == [
        Step("print(1)\n", path=Path("/srv/a.py")),
        Step("sleep 0"),
        Step("crckpt dump 7 \\\n  job", "0123456789ab  job: frozen 10 ms, 1.0 MiB\nthe tree keeps running\n"),
        Step("true", ""),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("frozen 10 ms, 1.0 MiB of a", "frozen 2.5 s, 800 B of a", True),
        ("a   b", "a b", True),
        ("PID 7 runs", "PID 12345 runs", True),
        ("PID 7 runs", "PID 12345 walks", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nb\nc", False),
        ("a\n...", "a\nb\nc", True),
        ("2026-01-01 10:00:00", "2027-12-31 00:00:01", True),
        ("one", "one\ntwo", False),
        ("[a] (b)*", "[a] (b)*", True),
    ],
)
def test_output_that_varies_is_not_compared_with_the_page(shown: str, printed: str, is_same: bool) -> None:
    assert (difference(StepResult(Step("x", shown), "x", 0, printed)) == "") is is_same


@pytest.mark.parametrize(
    ("shown", "status", "is_same"), [("crckpt: no", 12, True), ("crckpt: no", 0, False), ("no", 1, False)]
)
def test_command_of_a_page_may_fail_only_if_the_page_shows_it(shown: str, status: int, is_same: bool) -> None:
    assert (difference(StepResult(Step("x", shown), "x", status, shown)) == "") is is_same
    assert bool(difference(StepResult(Step("hidden"), "hidden", status, ""))) is (status != 0)


def test_output_of_a_run_is_written_into_the_page() -> None:
    steps = list(read_steps(PAGE))
    results = [StepResult(step, step.command.replace("7", "9"), 0, "new\n") for step in steps]
    assert refresh(PAGE, results) == PAGE.replace(
        "0123456789ab  job: frozen 10 ms, 1.0 MiB\nthe tree keeps running", "new"
    ).replace("dump 7", "dump 9").replace("$ true\n", "$ true\nnew\n")
