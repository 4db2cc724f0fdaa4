"""`crckpt explain` on real failures: CRIU fails in each way of the tables, and explain finds that cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from provoked.criu import Target, dump, end_restored, explain_log, fresh_directory, restore
from provoked.dumps import DUMPS, Dump
from provoked.restores import RESTORES, Restore
from provoked.workshop import Workshop

from crckpt.causes.catalogue import CAUSE_BY_KEY

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    """A workshop that is closed after the tests of the module."""
    with ExitStack() as stack:
        yield Workshop(stack)


@pytest.mark.parametrize("row", DUMPS, ids=[row.name for row in DUMPS])
def test_explain_finds_the_cause_of_a_failed_dump_by_criu(workshop: Workshop, tmp_path: Path, row: Dump) -> None:
    """After the failed dump the tree keeps running."""
    if row.unless():
        pytest.skip(f"{row.unless.__doc__}")
    with ExitStack() as stack:
        if row.is_plain:
            target = workshop.plain()
        else:
            workdir = stack.enter_context(fresh_directory())
            stack.enter_context(row.beside(workdir))
            target = stack.enter_context(Target(row.kind, workdir, row.within, row.depth))
        names = {"pid": target.pid, "workdir": target.workdir, "images": tmp_path / "images"}
        under = [word.format(**names) for word in row.under]
        ended = dump(target.pid, tmp_path / "images", row.options, under)
        assert ended.status != 0
        document = explain_log(ended.log)
        assert document["cause"] == row.cause, ended.complaints
        assert row.says.format(**names) in document["what"]
        assert document["remedy"]
        if row.answers:
            target.lives_on()


@pytest.mark.parametrize("row", RESTORES, ids=[row.name for row in RESTORES])
def test_explain_finds_the_cause_of_a_failed_restore_by_criu(workshop: Workshop, tmp_path: Path, row: Restore) -> None:
    """After the failed restore no process of the tree is left."""
    with ExitStack() as stack:
        world = workshop.checkpoint(row).world(tmp_path)
        changed = row.change(world)
        if isinstance(changed, AbstractContextManager):
            stack.enter_context(changed)
        stack.callback(end_restored, world.pid)
        ended = restore(world.images, row.options, row.under)
        document = explain_log(ended.log)
    assert ended.status != 0
    assert document["cause"] == row.cause, ended.complaints
    assert row.says.format(pid=world.pid, workdir=world.workdir) in document["what"]
    assert document["remedy"]


def test_at_least_sixty_causes_of_criu_are_provoked_by_these_tests() -> None:
    """Only causes from CRIU's log count. tests/data/logs has a line for each of the others."""
    provoked = {row.cause for row in (*DUMPS, *RESTORES)}
    assert len(provoked) >= 60
    assert all(CAUSE_BY_KEY[key].pattern for key in provoked)
