"""One restore of a job at a time, by a lock with the job's name."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from image_sets import open_store

from crckpt.errors import StoreLocked, UsageError
from crckpt.model import JobName
from crckpt.store import Repository
from crckpt.store.backend.flock import holders

JOB = JobName("job")


def test_restores_of_a_job_exclude_each_other(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with repository.restoring(JOB):
        another = pytest.raises(StoreLocked, match="another restore of job is in progress: PID")
        with another, repository.restoring(JOB, 0):
            pass
        with repository.restoring(JobName("another")):
            pass
    assert not list((repository.root / "locks").iterdir())
    with repository.restoring(JOB, 0):
        pass


def test_lock_file_of_a_restore_is_removed_by_its_last_holder(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with repository.restoring(JOB, 0, alone=False):
        with repository.restoring(JOB, 0, alone=False):
            pass
        assert [path.name for path in (repository.root / "locks").iterdir()] == ["restore-job"]
        with pytest.raises(StoreLocked), repository.restoring(JOB, 0):
            pass
    assert not list((repository.root / "locks").iterdir())


def test_process_with_the_pid_of_an_ended_holder_is_not_named(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with repository.restoring(JOB):
        path = repository.root / "locks/restore-job"
        holder = json.loads(path.read_bytes())
        assert holder["pid"] == os.getpid()
        path.write_text(json.dumps(holder | {"start": holder["start"] + 1}))
        with pytest.raises(StoreLocked, match=r"another restore of job is in progress$"), repository.restoring(JOB, 0):
            pass


def test_restore_lock_is_neither_a_store_lock_nor_a_leftover(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    with repository.restoring(JOB):
        assert holders(repository.root) == ()
        assert repository.backend.find_leftovers() == []


def test_lock_file_of_a_killed_process_does_not_block_others(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    (repository.root / "locks/restore-job").write_text("1")
    with repository.restoring(JOB, 0):
        pass


def test_restores_exclude_each_other_without_write_permission(tmp_path: Path) -> None:
    """The lock is in /run, for all paths that lead to the store."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    root = open_store(tmp_path).root
    (tmp_path / "other").mkdir(mode=0o700)
    try:
        for place in (root, tmp_path / "other"):
            subprocess.run(["mount", "--bind", root, place], check=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        with Repository.open(root).restoring(JOB):
            another = pytest.raises(StoreLocked, match="another restore of job is in progress: PID")
            with another, Repository.open(tmp_path / "other").restoring(JOB, 0):
                pass
        with Repository.open(tmp_path / "other").restoring(JOB, 0):
            pass
        status = root.stat()
        assert not list(Path("/run/crckpt/restores").glob(f"{status.st_dev:x}-{status.st_ino:x}-*"))
    finally:
        for place in (root, tmp_path / "other"):
            subprocess.run(["umount", "--lazy", place], check=False)


@pytest.mark.parametrize("name", ["../../escaped", "", ".", "a/b", "a\n"])
def test_invalid_job_name_creates_no_file(tmp_path: Path, name: str) -> None:
    """A manifest from another host may have such a job."""
    repository = open_store(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError), repository.restoring(JobName(name)):
        pass
    assert sorted(tmp_path.rglob("*")) == before
