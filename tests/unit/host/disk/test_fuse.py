"""A file system in user space that stops answering is disconnected, and no other one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest
from checkout import TESTS
from other_user import NOBODY
from own_process import descriptors
from smaller_bounds import smaller_bounds
from target_processes import wait_for
from trees import open_workdir

from crckpt.errors import DumpFailed
from crckpt.host.disk import fuse
from crckpt.host.disk.fuse import abort_connections, limited_answers
from crckpt.host.proc import descendants
from crckpt.host.process.criu_progress import waits_for_a_program
from crckpt.ops.failures import limited_waits_of_restore

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists() or shutil.which("unshare") is None,
    reason="needs root, FUSE and unshare(1)",
)

# Mount it, and read from it when told; in a mount namespace that nobody else looks at.
READING_PROGRAM = """
import os, subprocess, sys
server, mount, silent, pid, user = sys.argv[1:]
with subprocess.Popen([sys.executable, server, mount, silent, pid], stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    if int(user):
        os.setresuid(int(user), int(user), int(user))
    file = os.open(mount + "/file", os.O_RDONLY)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print(os.pread(file, 8, 0).decode(), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
    os._exit(0)
"""


class Reader:
    """A program that reads from the file system, and its mount point."""

    def __init__(self, process: subprocess.Popen[str], base: Path) -> None:
        self.process, self.mount, self._silent = process, base / "mount", base / "silent"
        self.pid = process.pid

    def read(self) -> None:
        """Let the process read."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait_for_answer(self) -> None:
        """Let the process read a file that is never answered."""
        self._silent.touch()
        self.read()
        wait_for(lambda: waits_for_a_program((self.pid,)), "it to wait for the file system")

    def read_line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()


@pytest.fixture
def workdir() -> Iterator[Path]:
    """A directory that other users can reach: each start of pytest closes the ones that it makes."""
    with open_workdir() as path:
        yield path


@contextmanager
def started(base: Path, user: int = 0) -> Iterator[Reader]:
    (base / "mount").mkdir()
    words = (str(TESTS / "programs/silent_fuse.py"), base / "mount", base / "silent", base / "server", str(user))
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", READING_PROGRAM, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        found = Reader(process, base)
        assert found.read_line() == "ready"
        yield found
    finally:
        # First the server: it answers all who wait.
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((base / "server").read_text()), signal.SIGKILL)
        process.kill()
        process.communicate()


def test_process_that_waits_for_a_fuse_file_system_gets_an_error_when_it_is_aborted(workdir: Path) -> None:
    with started(workdir) as reader:
        reader.wait_for_answer()
        before = descriptors()
        assert abort_connections((reader.pid,)) == (str(reader.mount),)
        assert descriptors() == before
        assert reader.read_line() == os.strerror(107)  # ENOTCONN


def test_fuse_file_system_without_pending_requests_is_not_aborted(workdir: Path) -> None:
    with started(workdir) as reader:
        assert abort_connections((reader.pid,)) == ()
        reader.read()
        assert reader.read_line() == "silence"


def test_fuse_file_system_of_another_user_is_not_aborted(workdir: Path) -> None:
    with started(workdir, NOBODY) as reader:
        reader.wait_for_answer()
        assert abort_connections((reader.pid,)) == ()
        assert abort_connections((reader.pid,), users=(1, 2)) == ()
        assert abort_connections((reader.pid,), users=(0,)) == (str(reader.mount),)
        assert reader.read_line() == os.strerror(107)


def test_file_system_that_is_not_mounted_any_more_is_found_by_its_owner(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system may also be mounted only in another mount namespace."""
    monkeypatch.setenv("FUSE_USER", str(NOBODY))
    with started(workdir) as reader:
        subprocess.run(["nsenter", f"--mount=/proc/{reader.pid}/ns/mnt", "umount", "-l", str(reader.mount)], check=True)
        reader.wait_for_answer()
        assert abort_connections((reader.pid,)) == ()
        found = abort_connections((reader.pid,), users=(NOBODY,))
        assert all(name.startswith("FUSE connection ") for name in found)
        assert reader.read_line() == os.strerror(107)


def test_time_to_wait_for_a_fuse_file_system_is_limited(workdir: Path) -> None:
    with started(workdir) as reader, smaller_bounds(fuse, QUIET_S=1, _LOOK_S=0.02):
        waiting, abort = (lambda: (reader.pid,)), (lambda: abort_connections(descendants(reader.pid)))
        with limited_answers(waiting, abort) as aborted:
            reader.wait_for_answer()
            assert reader.read_line() == os.strerror(107)
        assert aborted == [str(reader.mount)]


def test_error_that_arrives_before_the_abort_has_returned_names_the_file_system(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = Event()

    def abort_slowly(pids: Iterable[int], users: Iterable[int] = ()) -> tuple[str, ...]:
        found = abort_connections(pids, users)
        assert has_failed.wait(30)
        time.sleep(0.1)  # the error goes on meanwhile
        return found

    def fail(reader: Reader) -> None:
        reader.wait_for_answer()
        assert reader.read_line() == os.strerror(107)
        has_failed.set()
        raise DumpFailed("it cannot be read")

    monkeypatch.setattr(fuse, "abort_connections", abort_slowly)
    with (
        started(workdir) as reader,
        smaller_bounds(fuse, QUIET_S=1, _LOOK_S=0.02),
        pytest.raises(DumpFailed, match=f"{reader.mount} did not answer"),
        limited_waits_of_restore(frozenset()),
    ):
        fail(reader)


def test_fuse_file_system_of_a_process_that_does_not_wait_is_not_aborted(workdir: Path) -> None:
    with started(workdir) as reader, smaller_bounds(fuse, QUIET_S=1, _LOOK_S=0.01):
        with limited_answers(lambda: (reader.pid,), lambda: ("never",)) as aborted:
            reader.read()
            assert reader.read_line() == "silence"
            time.sleep(0.1)  # ten looks
        assert aborted == []
    assert descendants(reader.pid) == ()
