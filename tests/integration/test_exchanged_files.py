"""A restored program has the files that it had open, and no file that another user has put in their place."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped_trees import JOB, stopped
from trees import NOBODY, PYTHON, Case, Tree, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 23
REFUSED: Final = 24
AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
LOGS: Final = (PYTHON, "{workdir}/programs/growing_log.py", "{workdir}")
LOG: Final = "growing.log"


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file of root's in a directory that everybody may go to, as /etc is, with all that CRIU checks of the log."""
    # The temporary directory of pytest is private, so the program could not open a file in it anyway.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        file = Path(place) / "shadow"
        file.write_bytes(b"root:*\n" * 10_000)
        file.chmod(0o600)
        os.utime(file, (0, 0))
        yield file


def test_file_of_root_that_replaced_a_log_is_not_opened_for_the_program(crckpt: Crckpt, secret: Path) -> None:
    """CRIU opens paths as root: the program could write to any file that its user links to (fs.protected_hardlinks)."""
    before = secret.read_bytes()
    with stopped(crckpt, Case("log", (*AS_NOBODY, *LOGS), user=NOBODY)) as tree:
        _exchange(tree, secret)
        result = crckpt.run("restore", JOB, "--detach", "--grown", "keep", status=FAILED)
        assert f"{LOG}, a file of process {tree.pid}" in result.err
        assert not Path(f"/proc/{tree.pid}").exists()
        assert secret.read_bytes() == before
        assert f"{LOG}, a file of process" in crckpt.run("rehearse", JOB, status=25).err
        crckpt.run("restore", JOB, "--detach", "--grown", "keep", "--allow-weaker")


def test_directory_that_the_program_may_not_enter_is_not_opened_for_it(crckpt: Crckpt, secret: Path) -> None:
    """A process in a directory needs no permission on the directories above it."""
    case = Case("log", (*AS_NOBODY, "env", "--chdir={workdir}/inner", *LOGS), user=NOBODY)
    with stopped(crckpt, _with_directory(case, "inner")) as tree:
        (secret.parent / "open").mkdir(mode=0o755)
        secret.parent.chmod(0o700)
        (tree.workdir / "inner").rmdir()
        (tree.workdir / "inner").symlink_to(secret.parent / "open")
        assert "inner" in crckpt.run("restore", JOB, "--detach", status=REFUSED).err
        assert not Path(f"/proc/{tree.pid}").exists()
        # CRIU opens the directory as root. crckpt notices this when CRIU has built the tree.
        crckpt.run("restore", JOB, "--detach", "--no-preflight", status=FAILED)
        assert "inner" in crckpt.run("rehearse", JOB, status=REFUSED).err


def test_file_that_the_programs_user_replaced_is_opened_for_the_program(crckpt: Crckpt) -> None:
    """A log may have been replaced by another file that the program could open itself."""
    with stopped(crckpt, Case("log", (*AS_NOBODY, *LOGS), user=NOBODY)) as tree:
        log = tree.workdir / LOG
        content, before = log.read_bytes(), tree.counters()
        other = tree.workdir / "elsewhere"
        other.write_bytes(content)
        other.chmod(0o600)
        os.chown(other, NOBODY, NOBODY)
        other.rename(log)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_file_of_root_that_the_program_had_open_is_opened_for_it_again(crckpt: Crckpt) -> None:
    """A shell of root has opened the file for the program, in a directory of the user."""
    opened = ("sh", "-c", 'exec "$@" 7>>{workdir}/errors', "sh", *AS_NOBODY, *LOGS)
    with stopped(crckpt, Case("log", opened, user=NOBODY)) as tree:
        assert (tree.workdir / "errors").stat().st_uid == 0
        crckpt.run("rehearse", JOB, "--seconds", "0.2")
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_file_that_replaced_an_open_file_of_root_is_not_opened_for_the_program(
    crckpt: Crckpt, secret: Path, is_replaced: bool
) -> None:
    """Root opens a key for a program that may not open it. The program does not get the key that replaced it."""
    opened = ("sh", "-c", f'exec "$@" 7<{secret}', "sh", *AS_NOBODY, *LOGS)
    with stopped(crckpt, Case("log", opened, user=NOBODY)) as tree:
        before = tree.counters()
        if is_replaced:
            new = secret.with_name("new")
            new.write_bytes(b"root:!\n" * 10_000)
            new.chmod(0o600)
            os.utime(new, (0, 0))
            new.rename(secret)
            assert str(secret) in crckpt.run("restore", JOB, "--detach", status=FAILED).err
        crckpt.run("restore", JOB, "--detach", *(("--allow-weaker",) if is_replaced else ()))
        tree.wait_growth(before)


def test_file_in_a_users_directory_is_not_opened_for_a_program_of_root(crckpt: Crckpt, secret: Path) -> None:
    """The log of a web server, for example, may be in a directory of a user."""
    before = secret.read_bytes()
    case = Case("log", LOGS, user=NOBODY)
    with stopped(crckpt, case) as tree:
        _exchange(tree, secret)
        result = crckpt.run("restore", JOB, "--detach", "--grown", "keep", status=FAILED)
        assert "nobody" in result.err
        assert secret.read_bytes() == before


OPEN_STATEMENTS: Final = {
    "read": "f = os.open(path, os.O_RDONLY)",
    "append": "f = os.open(path, os.O_WRONLY | os.O_APPEND)",
    "execute": "m = mmap.mmap(os.open(path, os.O_RDONLY), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)",
    "share": "m = mmap.mmap(os.open(path, os.O_RDWR), 0, mmap.MAP_SHARED)",
}
PROGRAM_THAT_USES_A_FILE: Final = """import mmap, os, signal, sys
path, ready = sys.argv[1:]
{}
open(ready, "w").close()
while True: signal.pause()
"""
OTHER_UID: Final = NOBODY - 1


@pytest.mark.parametrize("owner", [0, NOBODY])
@pytest.mark.parametrize("use", OPEN_STATEMENTS)
def test_file_of_another_user_in_a_shared_directory_is_not_opened_for_the_program(
    crckpt: Crckpt, secret: Path, use: str, owner: int
) -> None:
    """In /tmp, another user could choose what root's program reads or executes after a file was removed."""
    public = secret.parent / "public"
    public.mkdir()
    public.chmod(0o1777)
    file = public / "file"
    _make(file, owner)
    with _using(crckpt, OPEN_STATEMENTS[use], file) as pid:
        file.unlink()
        _make(file, OTHER_UID)
        error = crckpt.run("restore", JOB, "--detach", "--grown", "keep", status=FAILED).err
        assert f"{file}, a file of process {pid}" in error
        assert "that user may have put it there" in error
        assert not Path(f"/proc/{pid}").exists()
        assert "may have put it there" in crckpt.run("rehearse", JOB, status=25).err
        # A new file of the same user is accepted, because this user could also change the old one.
        file.unlink()
        _make(file, owner)
        crckpt.run("restore", JOB, "--detach", "--grown", "keep")


@pytest.mark.parametrize("before", [NOBODY, 0])
def test_new_file_with_the_inode_of_a_removed_one_is_not_opened_for_the_program(
    crckpt: Crckpt, secret: Path, before: int
) -> None:
    """Root writes a file in a user's directory, which gets the inode of the user's removed file, or of root's own."""
    file = _make_in_directory_of_nobody(secret)
    os.chown(file, before, before)
    opened = ("sh", "-c", f'exec "$@" 7<>{file}', "sh", *AS_NOBODY)
    with _using(crckpt, "", file, *opened) as pid:
        if before:
            # For the restore, a new owner is the same as a new file with the old inode, on any file system.
            os.chown(file, 0, 0)
        else:
            _replace_in_its_inode(file)
        assert f"{file}, a file of process {pid}" in crckpt.run("restore", JOB, "--detach", status=FAILED).err
        assert not Path(f"/proc/{pid}").exists()


def _replace_in_its_inode(file: Path) -> None:
    inode = file.stat().st_ino
    file.unlink()
    for number in range(64):
        new = file.with_name(f"new{number}")
        _make(new, 0)
        if new.stat().st_ino == inode:
            new.rename(file)
            return
    pytest.skip("this file system does not give an inode to another file soon, or another program was faster")


# Python's map has a copy of the descriptor.
MAP_STATEMENT: Final = "m = mmap.mmap(os.open(path, os.{}), 0, mmap.MAP_SHARED, mmap.PROT_READ); os.closerange(3, 256)"


@pytest.mark.parametrize("opened", ["O_RDONLY", "O_RDWR"])
def test_file_of_root_is_not_mapped_from_a_descriptor_that_can_make_the_map_writable(
    crckpt: Crckpt, secret: Path, opened: str
) -> None:
    """A program that has opened its file for writing can make a read-only map of it writable by mprotect(2)."""
    file = _make_in_directory_of_nobody(secret)
    with _using(crckpt, MAP_STATEMENT.format(opened), file, *AS_NOBODY) as pid:
        file.rename(file.with_name("old"))
        _make(file, 0)
        if opened == "O_RDWR":
            assert f"{file}, a file of process {pid}" in crckpt.run("restore", JOB, "--detach", status=FAILED).err
            assert not Path(f"/proc/{pid}").exists()
            file.unlink()
            _make(file, NOBODY)
        crckpt.run("restore", JOB, "--detach")


def _make_in_directory_of_nobody(secret: Path) -> Path:
    directory = secret.parent / "users"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    _make(directory / "file", NOBODY)
    return directory / "file"


@contextmanager
def _using(crckpt: Crckpt, use: str, file: Path, *runner: str) -> Iterator[int]:
    """A program of root's, or started by `runner`, that uses the file, and was dumped and ended: its PID."""
    ready = file.with_name("ready")
    words = (*runner, PYTHON, "-c", PROGRAM_THAT_USES_A_FILE.format(use), str(file), str(ready))
    null = subprocess.DEVNULL
    program = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True, close_fds=True)
    try:
        wait_for(ready.exists, 60, "the program")
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait()
        yield program.pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(program.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            # A restored program has the same PID, and this process has adopted it.
            os.waitpid(program.pid, 0)


def _make(file: Path, owner: int) -> None:
    file.write_bytes(b"1" * 8192)
    file.chmod(0o644)
    os.chown(file, owner, owner)
    os.utime(file, (0, 0))


def _exchange(tree: Tree, secret: Path) -> None:
    log = tree.workdir / LOG
    log.unlink()
    log.hardlink_to(secret)


def _with_directory(case: Case, name: str) -> Case:
    words = ("sh", "-c", f'mkdir {{workdir}}/{name}; exec "$@"', "sh", *case.argv)
    return Case(case.name, words, user=case.user)
