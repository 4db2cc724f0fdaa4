"""CRIU's lines in failures reported in public, whose threads name the cause.

tests/data/logs/public.tsv: the log in public/, the causes that are right, the thread (owner/repository#number, or the
name of what else was published), and the set: `fixed-with` were before our eyes when the catalogue was changed, each
`held-out-N` only after `explain` was measured with it.
"""

from __future__ import annotations

import pytest
from checkout import TESTS

from crckpt.causes.catalogue import CAUSE_BY_KEY
from crckpt.causes.finding import LIKELY
from crckpt.criu.explain import explain

LOGS = TESTS / "data" / "logs"
ROWS = [tuple(line.split("\t")) for line in (LOGS / "public.tsv").read_text().splitlines() if not line.startswith("#")]


def test_table_of_public_logs_has_a_row_for_each_log_and_known_causes() -> None:
    assert len(ROWS) >= 240
    assert {f"{row[0]}.log" for row in ROWS} == {path.name for path in (LOGS / "public").iterdir()}
    assert {cause for row in ROWS for cause in row[1].split(",")} <= set(CAUSE_BY_KEY)


@pytest.mark.parametrize(("name", "causes"), [row[:2] for row in ROWS], ids=[row[0] for row in ROWS])
def test_public_log_has_the_cause_that_was_found_where_it_was_reported(name: str, causes: str) -> None:
    finding = explain((LOGS / "public" / f"{name}.log").read_text()).finding
    assert finding is not None
    assert finding.key in causes.split(",")
    assert str(finding.what).startswith(LIKELY) != finding.sure
