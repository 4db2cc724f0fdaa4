"""Jobs of a store whose program runs here, with real processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from image_sets import described, of_pages, store
from msgspec.structs import asdict, replace
from small_programs import WAIT_STATEMENTS, program, read

from crckpt.host import proc
from crckpt.host.proc import identify_live_root
from crckpt.host.program import read_program
from crckpt.host.target import RestoredTree, record_restored
from crckpt.migrate.drain import MoveOutcome, RunningJob, find_running_jobs
from crckpt.model import CheckpointId, JobName, StoreId, Task
from crckpt.store import Checkpoint, Repository

MANY_BYTES = 64 << 20
LARGE = f"memory = bytearray(os.urandom(1 << 20)) * {MANY_BYTES >> 20}; {WAIT_STATEMENTS}"


class RunningJobs(NamedTuple):
    """The jobs that run here."""

    jobs: tuple[RunningJob, ...]
    excluded: tuple[MoveOutcome, ...]


class JobStore:
    """A store whose checkpoints are of live processes."""

    def __init__(self, repository: Repository, base: Path) -> None:
        self.repository = repository
        self._base = base
        self._pages = 0

    def record(self, job: str, pid: int, **details: object) -> Checkpoint:
        """Store a checkpoint of a job, as a dump of the process would."""
        process = read(pid)
        known: dict[str, Any] = {
            "root": asdict(process.identity),
            "program": asdict(read_program(pid, process.comm)),
            "uptime_ticks": proc.uptime_ticks(),
            **details,
        }
        content = json.dumps({key: value for key, value in known.items() if value is not None}).encode()
        new = replace(described(job, content), tree=(Task(pid, 1, process.comm, (pid,)),))
        self._pages += 1
        return store(self.repository, self._base, of_pages(self._pages), new)

    def restore(self, job: str, pid: int, store: str) -> None:
        """Record the process as a restore of the job would."""
        record_restored(
            RestoredTree(identify_live_root(read(pid)), StoreId(store), JobName(job), CheckpointId("0" * 64))
        )

    def find(self) -> RunningJobs:
        """Find what runs here."""
        return RunningJobs(*find_running_jobs(self.repository))

    def find_names(self) -> list[str]:
        """Find the jobs to move."""
        return [job.job for job in self.find().jobs]


@pytest.fixture
def job_store(repository: Repository, tmp_path: Path) -> JobStore:
    return JobStore(repository, tmp_path)


@pytest.fixture
def waiting_pid() -> Iterator[int]:
    """The PID of a program that waits."""
    with program(WAIT_STATEMENTS) as process:
        yield process.pid


def before(pid: int) -> dict[str, object]:
    """The identity of an earlier process that had this PID."""
    root = read(pid)
    return asdict(replace(root, start=root.start - 1).identity)


def test_running_jobs_are_listed_by_size_with_the_largest_first(job_store: JobStore, waiting_pid: int) -> None:
    with program(LARGE) as large:
        for job, pid in (("one", waiting_pid), ("other", large.pid)):
            job_store.record(job, pid)
        found = job_store.find()
        assert [(job.job, job.root.pid) for job in found.jobs] == [("other", large.pid), ("one", waiting_pid)]
        assert found.jobs[0].memory_bytes >= MANY_BYTES
        assert found.excluded == ()


def test_job_of_an_ended_program_is_not_listed_as_running(job_store: JobStore) -> None:
    with program(WAIT_STATEMENTS) as process:
        job_store.record("job", process.pid)
        assert job_store.find_names() == ["job"]
    assert job_store.find() == ((), ())


def test_job_whose_pid_another_process_has_is_not_listed_as_running(job_store: JobStore, waiting_pid: int) -> None:
    job_store.record("earlier", waiting_pid, root=before(waiting_pid))
    job_store.record("rebooted", waiting_pid, root=before(waiting_pid) | {"boot_id": "another"})
    assert job_store.find_names() == []


def test_running_job_is_found_only_by_its_newest_checkpoint(job_store: JobStore, waiting_pid: int) -> None:
    job_store.record("job", waiting_pid)
    job_store.record("job", waiting_pid, root=before(waiting_pid))
    assert job_store.find_names() == []


def test_running_job_is_found_by_its_tracked_root(job_store: JobStore, waiting_pid: int) -> None:
    job_store.record("job", waiting_pid, root=before(waiting_pid), tracked_root=asdict(read(waiting_pid).identity))
    assert job_store.find_names() == ["job"]


@pytest.mark.parametrize("is_ours", [True, False])
def test_running_job_is_found_by_its_record_of_a_restore(job_store: JobStore, waiting_pid: int, is_ours: bool) -> None:
    """The program was restored from this store, possibly by a move."""
    job_store.record("job", waiting_pid, root=before(waiting_pid))
    job_store.restore("job", waiting_pid, job_store.repository.id if is_ours else "another")
    assert job_store.find_names() == (["job"] if is_ours else [])


def test_only_the_later_of_two_jobs_of_one_program_is_moved(job_store: JobStore, waiting_pid: int) -> None:
    for job in ("first", "second"):
        job_store.record(job, waiting_pid)
    found = job_store.find()
    assert [job.job for job in found.jobs] == ["second"]
    assert [(each.job, each.outcome) for each in found.excluded] == [("first", "included")]
    assert "second" in found.excluded[0].why


# A child that ends with it.
PARENT = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
{WAIT_STATEMENTS}
"""


def test_job_of_a_subtree_is_not_moved_separately(job_store: JobStore) -> None:
    with program(PARENT) as process:
        (child,) = proc.children(process.pid)
        job_store.record("part", child)
        job_store.record("whole", process.pid)
        found = job_store.find()
        assert [job.job for job in found.jobs] == ["whole"]
        assert [(each.job, each.pid, each.outcome) for each in found.excluded] == [("part", child, "included")]


@pytest.mark.parametrize("find_pid", [os.getpid, os.getppid])
def test_tree_in_which_crckpt_runs_is_not_moved(
    job_store: JobStore, waiting_pid: int, find_pid: Callable[[], int]
) -> None:
    job_store.record("own", find_pid())
    # The other program is a child of this process. Only the tree in which crckpt runs is not moved.
    job_store.record("other", waiting_pid)
    found = job_store.find()
    assert [job.job for job in found.jobs] == ["other"]
    assert [(each.job, each.outcome) for each in found.excluded] == [("own", "stayed")]


def test_job_with_an_unreadable_manifest_is_reported(job_store: JobStore, waiting_pid: int) -> None:
    job_store.record("job", waiting_pid, root=7)
    assert [(each.job, each.pid, each.outcome) for each in job_store.find().excluded] == [("job", None, "unknown")]


def test_running_job_found_in_two_ways_is_listed_once(job_store: JobStore, waiting_pid: int) -> None:
    job_store.record("job", waiting_pid)
    job_store.restore("job", waiting_pid, job_store.repository.id)
    assert job_store.find_names() == ["job"]
