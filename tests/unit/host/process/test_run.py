"""Start programs: their environment, what they leave behind, and the report of their end."""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.errors import HostCannot
from crckpt.host.process import run


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o700)
    return path


def own_descriptors() -> set[str]:
    """Our descriptors with their targets, without the one that lists them."""
    links = list(Path("/proc/self/fd").iterdir())
    return {f"{link.name} {link.readlink()}" for link in links if link.is_symlink()}


@pytest.fixture
def open_descriptor(tmp_path: Path) -> Iterator[int]:
    """A descriptor of ours that children would inherit unless it is closed."""
    fd = os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(fd, True)
    yield fd
    os.close(fd)


def test_output_and_status_of_a_command_are_returned() -> None:
    result = run.run(["sh", "-c", "echo out; echo err >&2; printf '\\377'; exit 3"])
    assert (result.output, result.status, result.ok) == ("out\nerr\n\ufffd", 3, False)
    assert run.run(["true"]).ok
    assert run.run(["sh", "-c", "kill -9 $$"]).status == -signal.SIGKILL


def test_children_get_our_environment_and_closed_stdin(open_descriptor: int, tmp_path: Path) -> None:
    assert dict(line.split("=", 1) for line in run.run(["env"]).output.splitlines()) == run.ENVIRONMENT
    assert run.run(["cat"]).output == ""
    assert f"\n{open_descriptor}\n" not in f"\n{run.run(['ls', '/proc/self/fd']).output}"
    assert run.run(["pwd"], cwd=tmp_path).output.strip() == str(tmp_path)
    pid, session = run.run(["sh", "-c", "echo $$ $(ps -o sid= -p $$)"]).output.split()
    assert pid == session


@pytest.mark.parametrize("content", [None, "not a program", "#!/nowhere/interpreter\n", "\x7fELF nonsense"])
def test_program_that_cannot_start_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "program"
    if content is not None:
        script(path, content)
    with pytest.raises(HostCannot, match=f"cannot run {path}"):
        run.run([path])
    before = own_descriptors()
    with pytest.raises(HostCannot, match=f"cannot run {path}"):
        run.start([path], output=tmp_path / "out")
    assert own_descriptors() == before


def test_non_executable_program_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\n")
    with pytest.raises(HostCannot, match="Permission denied"):
        run.run([tmp_path / "program"])


def test_command_that_exceeds_its_time_limit_is_an_error() -> None:
    with pytest.raises(HostCannot, match=r"no answer after 0\.1 s from: sleep 3600"):
        run.run(["sleep", "3600"], timeout=0.1)


def test_quoted_command_can_be_pasted() -> None:
    assert run.quote(["nft", "delete", "a b", "$x"]) == "nft delete 'a b' '$x'"


def test_started_program_has_its_own_session_and_output(open_descriptor: int, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("before\n")
    tell = "readlink /proc/self/fd/0; pwd; ls /proc/self/fd; ps -o sid= -p $$; echo $$; echo err >&2; exit 4"
    child = run.start(["sh", "-c", tell], output=output)
    assert child.wait() == 4
    first, stdin, directory, *descriptors, session, pid, error = output.read_text().split()
    assert (first, stdin, directory, error) == ("before", "/dev/null", "/", "err")
    assert str(open_descriptor) not in descriptors
    assert session == pid == str(child.pid)


def test_output_file_of_a_started_program_is_private(tmp_path: Path) -> None:
    run.start(["true"], output=tmp_path / "out").wait()
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o600


def test_child_inherits_the_descriptors_that_it_is_given(open_descriptor: int, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = run.start(
        ["sh", "-c", f"read line; echo got $line; readlink /proc/self/fd/{open_descriptor}; ps -o sid= -p $$"],
        output=tmp_path / "out",
        own_session=False,
        stdin=reading,
        keep=[open_descriptor],
    )
    os.close(reading)
    os.write(writing, b"this\n")
    os.close(writing)
    assert child.wait() == 0
    assert (tmp_path / "out").read_text().split() == ["got", "this", str(tmp_path / "ours"), str(os.getsid(0))]


def test_environment_of_a_child_has_the_python_path(tmp_path: Path) -> None:
    child = run.start(["sh", "-c", "echo $PYTHONPATH"], output=tmp_path / "out", python_path=Path("/some where"))
    child.wait()
    assert (tmp_path / "out").read_text() == "/some where\n"


def test_waiting_twice_for_a_child_closes_no_other_descriptor(tmp_path: Path) -> None:
    child = run.start(["sh", "-c", "exit 5"], output=tmp_path / "out")
    number = child.pidfd
    assert child.wait() == 5
    with (tmp_path / "other").open("w") as other:
        assert other.fileno() == number, "the test wants the pidfd's number to be given again"
        assert child.wait() == 5
        os.fstat(other.fileno())
    assert child.ends_within(0)


def test_waiting_for_a_child_returns_whether_it_ended_in_time(tmp_path: Path) -> None:
    child = run.start(["sleep", "60"], output=tmp_path / "out")
    assert not child.ends_within(0.02)
    os.kill(child.pid, signal.SIGTERM)
    assert child.ends_within(20)
    assert child.wait() == -signal.SIGTERM


def test_child_that_was_released_can_still_be_waited_for(tmp_path: Path) -> None:
    """Otherwise Popen's finalizer, or the next Popen, would reap the child before the process that waits for it."""
    before = own_descriptors()
    child = run.start(["sh", "-c", "exit 7"], output=tmp_path / "out")
    pid = child.pid
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    child.abandon()
    del child
    gc.collect()
    subprocess.run(["true"], check=True)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert own_descriptors() == before
