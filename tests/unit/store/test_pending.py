"""Checkpoints that are not durable yet, and those that never will be."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from image_sets import open_store

from crckpt.errors import StoreUnusable
from crckpt.model import JobName, RunId
from crckpt.store import Repository
from crckpt.store.pending import announced

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = JobName("job")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return open_store(tmp_path)


def record(repository: Repository) -> Path:
    (path,) = (repository.root / "pending").iterdir()
    return path


def test_checkpoint_is_pending_while_it_is_stored(repository: Repository) -> None:
    with announced(repository.backend, JOB, CREATED, RunId("run-1"), alone=True):
        (pending,) = repository.pending()
        assert (pending.job, pending.created, pending.run_id) == (JOB, CREATED, "run-1")
        assert (pending.pid, pending.lost) == (os.getpid(), None)
    assert repository.pending() == ()


@pytest.mark.parametrize("alone", [True, False])
def test_failure_to_store_a_checkpoint_is_recorded_only_in_the_background(repository: Repository, alone: bool) -> None:
    with pytest.raises(StoreUnusable), announced(repository.backend, JOB, CREATED, None, alone=alone):
        raise StoreUnusable("the disk is full")
    assert [pending.lost for pending in repository.pending()] == ["the disk is full"] * alone


def test_pending_checkpoint_of_a_dead_process_is_lost(repository: Repository) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with announced(repository.backend, JOB, CREATED, None, alone=True):
        path = record(repository)
        document = json.loads(path.read_bytes())
        document["owner"]["pid"] = ended.pid
        path.write_text(json.dumps(document))
        (pending,) = repository.pending()
        assert pending.lost == f"crckpt (PID {ended.pid}) ended before the checkpoint was stored"


def test_pending_checkpoint_of_another_host_is_not_lost(repository: Repository) -> None:
    """This host cannot know whether the other process runs.

    A process that stores a checkpoint holds the store's lock.
    """
    with announced(repository.backend, JOB, CREATED, None, alone=True):
        path = record(repository)
        document = json.loads(path.read_bytes())
        owner = document["owner"]
        owner["boot_id"] = "another"
        path.write_text(json.dumps(document))
        with repository.backend.locked(alone=False, timeout=0):
            (pending,) = repository.pending()
            assert (pending.lost, pending.host) == (None, owner["host"])
        (pending,) = repository.pending()
        assert pending.lost
        owner["host"] = "elsewhere"
        path.write_text(json.dumps(document))
        (pending,) = repository.pending()
        assert (pending.lost, pending.host) == (None, "elsewhere")


@pytest.mark.parametrize("content", ["", "{}", "nonsense", '{"job": "../x", "created": "2026-01-02T03:04:05Z"}'])
def test_damaged_record_of_a_pending_checkpoint_is_ignored(repository: Repository, content: str) -> None:
    with announced(repository.backend, JOB, CREATED, None, alone=False):
        record(repository).write_text(content)
        assert repository.pending() == ()
