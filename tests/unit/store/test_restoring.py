"""One restore of a job at a time, by a lock that is named for the job."""

from pathlib import Path

import pytest

from crckpt.errors import StoreLocked, UsageError
from crckpt.model import JobName
from crckpt.store.layout import open_layout
from crckpt.store.restoring import restoring

JOB = JobName("job")


def test_it_is_one_at_a_time_and_nothing_is_left(tmp_path: Path) -> None:
    layout, _ = open_layout(tmp_path / "store", create=True)
    with restoring(layout, JOB):
        with pytest.raises(StoreLocked, match="another restore of job is in progress: PID"), restoring(layout, JOB, 0):
            pass
        with restoring(layout, JobName("another")):
            pass
    assert not list(layout.locks.iterdir())
    with restoring(layout, JOB, 0):
        pass


def test_what_a_killed_one_left_keeps_nobody_out(tmp_path: Path) -> None:
    layout, _ = open_layout(tmp_path / "store", create=True)
    (layout.locks / "restore-job").write_text("1")
    with restoring(layout, JOB, 0):
        pass


@pytest.mark.parametrize("name", ["../../escaped", "", ".", "a/b", "a\n"])
def test_a_job_that_is_no_name_makes_no_file(tmp_path: Path, name: str) -> None:
    """As a manifest from elsewhere may have it."""
    layout, _ = open_layout(tmp_path / "store", create=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError), restoring(layout, JobName(name)):
        pass
    assert sorted(tmp_path.rglob("*")) == before
