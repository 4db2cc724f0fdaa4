"""A file system of a tree's user that stops answering during a dump: the dump ends, and the tree keeps running."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt
from dump_moments import ENDS_WITHIN_S, assert_runs_on, find_below, is_traced, manifests, wait_ended
from trees import PYTHON, Case, Tree, started, wait_for

from crckpt.host.budget import finish_within

COUNTER: Final = (PYTHON, "{programs}/counter.py")
CLONE_FS: Final = 0x200
CLONE_NEWNS: Final = 0x20000
MS_REC_PRIVATE: Final = 0x44000
MNT_DETACH: Final = 2
LIBC: Final = ctypes.CDLL(None, use_errno=True)
WITHIN_S: Final = 40
FAILED, REFUSED, INTERRUPTED = 21, 24, 130
SHORT_LIMITS: Final = {"CRCKPT_QUIET_S": "2", "CRCKPT_PATIENCE_S": "1"}


@pytest.fixture(autouse=True)
def own_mounts() -> Iterator[None]:
    """Mount file systems that do not answer in an own mount namespace, where they block nobody else."""
    host = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    _called(LIBC.unshare(CLONE_NEWNS))
    _called(LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None))
    yield
    # setns needs a root and a working directory that no other thread shares.
    _called(LIBC.unshare(CLONE_FS))
    _called(LIBC.setns(host, CLONE_NEWNS))
    os.close(host)


def _called(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def tree_on_fuse(kind: str) -> Iterator[Tree]:
    """A tree that uses such a file system; its server is ended first, which answers everybody who waits."""
    with started(Case(kind, (PYTHON, "{programs}/on_silent_fuse.py", "{workdir}", kind))) as tree:
        try:
            yield tree
        finally:
            server = int((tree.workdir / "server").read_text())
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
            tree.end()
            _called(LIBC.umount2(os.fsencode(tree.workdir / "mount"), MNT_DETACH))


@contextmanager
def silent_in_dump(crckpt: Crckpt, tree: Tree, how: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A dump whose file system becomes silent after the preflight and before the freeze."""
    crckpt.run("dump", str(tree.pid), "job")
    dump = crckpt.start("dump", str(tree.pid), "job", *words, CRCKPT_STOP_AT="hold.commit", **SHORT_LIMITS)
    at_work: list[psutil.Process] = []
    try:
        wait_for(lambda: bool(_stopped(dump.pid)), ENDS_WITHIN_S, "crckpt to stop")
        at_work = _stopped(dump.pid)
        (tree.workdir / "silent").write_text(how)
        at_work[0].resume()
        yield dump
    finally:
        for process in at_work:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        dump.kill()
        dump.communicate()


def _stopped(pid: int) -> list[psutil.Process]:
    """The stopped process, which is the child that dumps with --async."""
    stopped = []
    for process in (psutil.Process(pid), *find_below(pid, "crckpt")):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                stopped.append(process)
    return stopped


@pytest.mark.parametrize("words", [(), ("--stop",), ("--async",), ("--pre-copy",)], ids=" ".join)
@pytest.mark.parametrize("how", ["silent", "deaf"])
def test_dump_blocked_by_a_file_system_ends(crckpt: Crckpt, how: str, words: tuple[str, ...]) -> None:
    """Once the program of the file system has read the request, the kernel does not let CRIU be killed."""
    with tree_on_fuse("opened") as tree, silent_in_dump(crckpt, tree, how, *words) as dump:
        criu = running_criu(dump.pid)
        out, error = dump.communicate(timeout=WITHIN_S)
        assert dump.returncode == FAILED, out + error
        assert re.search(r"file system .*(did|does) not answer", error), error
        assert re.search(r"hint: .*(fusermount3 -u|umount)", error), error
        assert "; no checkpoint was made; the tree keeps running\n" in error
        if "--pre-copy" not in words:  # there crckpt may be the first who gets an error
            assert f"the file system on {tree.workdir}/mount did not answer, and crckpt disconnected it" in error
        if "--pre-copy" in words and list(crckpt.store.glob("tmp/*")):
            # The next dump counts from the copied rounds. The tracker removes them when the tree has ended.
            assert_runs_on(tree, frozenset())
            tree.end()
            wait_for(lambda: not list(crckpt.store.glob("tmp/*")), ENDS_WITHIN_S, "the tracker to remove the rounds")
        else:
            assert_undone(crckpt, tree, criu)


def test_completion_does_not_wait_for_a_file_system(crckpt: Crckpt) -> None:
    """The shell waits for the answer, and nothing can end a process that waits for this file system."""
    with tree_on_fuse("opened") as tree:
        (tree.workdir / "silent").write_text("silent")
        words = ("dump", f"pidfile:{tree.workdir}/mount/")
        with crckpt.start(*words, _CRCKPT_COMPLETE="bash_complete") as completion:
            try:
                assert completion.communicate(timeout=ENDS_WITHIN_S) == ("", "")
                assert completion.returncode == 0
            finally:
                os.kill(int((tree.workdir / "server").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["opened", "mapped", "directory"])
def test_dump_of_a_silent_file_system_is_refused(crckpt: Crckpt, kind: str) -> None:
    """crckpt itself waits for the file system while it examines the tree."""
    with tree_on_fuse(kind) as tree:
        (tree.workdir / "silent").write_text("silent")
        dump = crckpt.start("dump", str(tree.pid), "job", **SHORT_LIMITS)
        _, error = dump.communicate(timeout=WITHIN_S)
        assert dump.returncode in (FAILED, REFUSED), error
        assert re.search(r"(did|does) not answer", error), error
        assert "hint: " in error
        assert_runs_on(tree, frozenset())


def test_file_that_waits_in_a_socket_does_not_block_a_dump(crckpt: Crckpt) -> None:
    """Without that, a process that may send to the socket could keep CRIU from ending for ever."""
    with tree_on_fuse("sent") as tree:
        (tree.workdir / "silent").write_text("silent")
        dump = crckpt.start("dump", str(tree.pid), "job")
        _, error = dump.communicate(timeout=WITHIN_S)
        assert dump.returncode == FAILED, error
        assert "a message that waits in a unix socket has a file of a file system in user space" in error
        assert "disconnected" not in error
        assert_runs_on(tree, frozenset())


@pytest.mark.parametrize("kind", ["executing", "executing_as_nobody"])
def test_dump_of_a_tree_that_executes_for_ever_is_refused(crckpt: Crckpt, kind: str) -> None:
    """It waits for the file system while it executes a program, and the kernel lets all wait who ask for it."""
    with tree_on_fuse(kind) as tree:
        (executing,) = psutil.Process(tree.pid).children()
        (tree.workdir / "silent").write_text("silent")
        wait_for(lambda: executes(executing.pid), ENDS_WITHIN_S, "the process to execute a program")
        dump = crckpt.start("dump", str(tree.pid), "job", **SHORT_LIMITS)
        _, error = dump.communicate(timeout=WITHIN_S)
        assert dump.returncode in (FAILED, REFUSED), error
        assert re.search(r"(did|does) not answer", error), error
        # Until then the test would have to wait for the process, too.
        with suppress(ProcessLookupError):
            os.kill(int((tree.workdir / "server").read_text()), signal.SIGKILL)
        assert_runs_on(tree, frozenset())


def test_process_of_others_that_executes_for_ever_delays_no_command(crckpt: Crckpt) -> None:
    with tree_on_fuse("executing_as_nobody") as other, started(Case("counter", (*COUNTER, "{workdir}"))) as tree:
        (executing,) = psutil.Process(other.pid).children()
        (other.workdir / "silent").write_text("silent")
        wait_for(lambda: executes(executing.pid), ENDS_WITHIN_S, "the process to execute a program")
        target = str(tree.pid)
        for words in (
            *(("dump", target, "job"), ("doctor", target), ("ps",), ("rehearse", "job"), ("gc",), ("report",)),
            *(("dump", target, "job", "--stop"), ("restore", "job", "--detach")),
        ):
            command = crckpt.start(*words)
            out, error = command.communicate(timeout=WITHIN_S)
            assert command.returncode == 0, (words, out, error)


def executes(pid: int) -> bool:
    """Return whether the kernel answers nothing about it."""
    try:
        finish_within(0.5, Path(f"/proc/{pid}/maps").read_bytes)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("words", [("restore",), ("rehearse",)], ids=" ".join)
@pytest.mark.parametrize("how", ["silent", "deaf"])
@pytest.mark.parametrize("kind", ["opened", "directory"])
def test_restore_onto_a_silent_file_system_ends_with_a_hint(
    crckpt: Crckpt, kind: str, how: str, words: tuple[str, ...]
) -> None:
    with tree_on_fuse(kind) as tree:
        crckpt.run("dump", str(tree.pid), "job", "--stop")
        (tree.workdir / "silent").write_text(how)
        restore = crckpt.start(*words, "job", **SHORT_LIMITS)
        out, error = restore.communicate(timeout=WITHIN_S)
        assert restore.returncode not in (0, 1), out + error
        assert re.search(r"(did|does) not answer", error), error
        assert re.search(r"hint: .*(fusermount3 -u|umount)", error), error
        crckpt.run("verify", "job")


@pytest.mark.parametrize("words", [(), ("--stop",)], ids=" ".join)
def test_dump_blocked_by_a_file_system_can_be_interrupted(crckpt: Crckpt, words: tuple[str, ...]) -> None:
    with tree_on_fuse("opened") as tree, silent_in_dump(crckpt, tree, "silent", *words) as dump:
        wait_for(lambda: is_traced(tree), ENDS_WITHIN_S, "CRIU to freeze the tree")
        criu = running_criu(dump.pid)
        dump.send_signal(signal.SIGINT)
        _, error = dump.communicate(timeout=WITHIN_S)
        assert dump.returncode == INTERRUPTED, error
        assert error.startswith("crckpt: interrupted by SIGINT; ")
        assert "the tree keeps running" in error
        assert_undone(crckpt, tree, criu)


@pytest.mark.parametrize("words", [(), ("--stop",), ("--pre-copy",)], ids=" ".join)
def test_memory_with_an_unserved_userfaultfd_does_not_block_the_dump(crckpt: Crckpt, words: tuple[str, ...]) -> None:
    """Nobody serves the userfaultfd, which is outside the tree; its pages were never used."""
    kind = "unserved_memory"
    with started(Case(kind, (PYTHON, "{programs}/blocked.py", "{workdir}", kind))) as tree:
        dump = crckpt.start("dump", str(tree.pid), "job", "--no-preflight", "--force", *words, **SHORT_LIMITS)
        out, error = dump.communicate(timeout=WITHIN_S)
        assert dump.returncode == 0, out + error
        if "--stop" not in words:
            assert_runs_on(tree, frozenset())


def running_criu(pid: int) -> list[int]:
    """The PIDs of the CRIU that this crckpt has started, without the keeper, which stays with the tree."""
    return [process.pid for process in find_below(pid, "--images-dir")]


def assert_undone(crckpt: Crckpt, tree: Tree, criu: list[int]) -> None:
    """Assert that the dump has left nothing but the tree."""
    wait_ended(criu)
    assert_runs_on(tree, frozenset())
    assert manifests(crckpt.store) == 1
    assert not list(crckpt.store.glob("tmp/*"))
