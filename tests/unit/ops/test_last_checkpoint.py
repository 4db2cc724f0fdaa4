"""The last checkpoint of a job is read as far as it can be."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_sets import described, of_pages, store

from crckpt.errors import IntegrityError, Interrupted
from crckpt.ops.last_checkpoint import read_last_checkpoint
from crckpt.store import Repository


def _fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("crckpt.ops.last_checkpoint.read_recent_details", fail)


def test_last_checkpoint_that_is_damaged_has_no_details(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = store(repository, tmp_path, of_pages(1), described("trainer"))
    _fail_with(IntegrityError("damaged"), monkeypatch)
    last = read_last_checkpoint(repository, checkpoint.job)
    assert last is not None
    assert (last.checkpoint, last.details) == (checkpoint, None)


def test_interruption_while_the_last_checkpoint_is_read_ends_the_dump(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption that was taken for damage would let a dump with --stop continue."""
    checkpoint = store(repository, tmp_path, of_pages(1), described("trainer"))
    _fail_with(Interrupted("interrupted by SIGINT"), monkeypatch)
    with pytest.raises(Interrupted):
        read_last_checkpoint(repository, checkpoint.job)
