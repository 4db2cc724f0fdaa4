"""The log of a terminal: of limited size, private, and of one terminal each."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from crckpt.errors import HostCannot
from crckpt.helper.terminal.output_log import OutputLog


def test_output_log_is_private_and_appended_to(tmp_path: Path) -> None:
    for word in (b"one\n", b"two\n"):
        log = OutputLog("job", tmp_path / "logs")
        log.write(word)
        log.close()
    assert (tmp_path / "logs/job.log").read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE((tmp_path / "logs/job.log").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


def test_output_log_is_rotated_when_it_is_full(tmp_path: Path) -> None:
    log = OutputLog("job", tmp_path)
    log.most_bytes = 10
    for number in range(5):
        log.write(b"%d23456\n" % number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.log", "job.log.1"]
    assert (tmp_path / "job.log").read_bytes() == b"423456\n"
    assert (tmp_path / "job.log.1").read_bytes() == b"323456\n"
    log.close()


@pytest.mark.parametrize("obstacle", ["directory", "other terminal", "none"])
def test_output_is_appended_to_the_full_file_if_no_new_one_can_be_created(tmp_path: Path, obstacle: str) -> None:
    """The old file gets the output until a new one can be created. No descriptor is lost."""
    log = OutputLog("job", tmp_path)
    log.most_bytes = 10
    log.write(b"0123456\n")
    (tmp_path / "job.log").rename(tmp_path / "kept")
    if obstacle == "directory":
        # Neither renamed nor opened as a file.
        (tmp_path / "job.log").mkdir()
        (tmp_path / "job.log.1").touch()
    elif obstacle == "other terminal":
        other = OutputLog("job", tmp_path)
        (tmp_path / "job.log.1").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    log.write(b"1234567\n")
    log.write(b"2345678\n")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    if obstacle == "none":
        assert (tmp_path / "job.log.1").read_bytes() + (tmp_path / "job.log").read_bytes() == b"1234567\n2345678\n"
    else:
        assert (tmp_path / "kept").read_bytes() == b"0123456\n1234567\n2345678\n"
    if obstacle == "directory":
        (tmp_path / "job.log").rmdir()
        log.write(b"3456789\n")
        assert (tmp_path / "job.log").read_bytes() == b"3456789\n"
    elif obstacle == "other terminal":
        other.close()
    log.close()


def test_two_terminals_of_a_job_have_two_logs(tmp_path: Path) -> None:
    first, second = OutputLog("job", tmp_path), OutputLog("job", tmp_path)
    assert [first.path.name, second.path.name] == ["job.log", "job-2.log"]
    first.close()
    third = OutputLog("job", tmp_path)
    assert third.path.name == "job.log"
    for log in (second, third):
        log.close()


@pytest.mark.parametrize("kind", ["link", "second name", "writable by others", "link to a directory"])
def test_output_log_planted_by_another_user_is_refused(tmp_path: Path, kind: str) -> None:
    other, logs = tmp_path / "other", tmp_path / "logs"
    other.touch()
    logs.mkdir(mode=0o700)
    match kind:
        case "link":
            (logs / "job.log").symlink_to(other)
        case "second name":
            os.link(other, logs / "job.log")
        case "writable by others":
            logs.chmod(0o777)
        case _:
            logs.rename(tmp_path / "real")
            logs.symlink_to(tmp_path / "real")
    with pytest.raises(HostCannot, match="cannot write the log") as raised:
        OutputLog("job", logs)
    assert "--tty FILE" in raised.value.hint
    assert other.read_bytes() == b""
