"""One restore of a job at a time, by a lock that is named for the job."""

from pathlib import Path

import pytest
from image_sets import open_store

from crckpt.errors import StoreLocked, UsageError
from crckpt.model import JobName

JOB = JobName("job")


def test_it_is_one_at_a_time_and_nothing_is_left(tmp_path: Path) -> None:
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


def test_what_a_killed_one_left_keeps_nobody_out(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    (repository.root / "locks/restore-job").write_text("1")
    with repository.restoring(JOB, 0):
        pass


@pytest.mark.parametrize("name", ["../../escaped", "", ".", "a/b", "a\n"])
def test_a_job_that_is_no_name_makes_no_file(tmp_path: Path, name: str) -> None:
    """As a manifest from elsewhere may have it."""
    repository = open_store(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError), repository.restoring(JobName(name)):
        pass
    assert sorted(tmp_path.rglob("*")) == before
