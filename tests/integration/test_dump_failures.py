"""After any early end of a dump, the tree runs with its connections, and the store has no partial checkpoint."""

import ctypes
import os
import random
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest
from cases import CASES
from command import Crckpt, network_locks
from dump_moments import (
    ENDS_WITHIN_S,
    MOMENTS,
    assert_runs_on,
    checkpoints,
    is_traced,
    kill_below,
    manifests,
    orphans_of,
    wait_ended,
    wait_for_moment,
)
from effort import examples
from trees import PROGRAMS, PYTHON, Case, Tree, open_workdir, runs, started, wait_for

from crckpt.store import Repository, collect_garbage

DIALOGUE: Final = Case("dialogue", (PYTHON, "{programs}/dialogue.py", "{workdir}"), tcp="keep")
LARGE_PROGRAM: Final = Case("large", (*DIALOGUE.argv, "--mib", "48"), tcp="keep")
COUNTER: Final = next(case for case in CASES if case.name == "counter")
FAMILY: Final = next(case for case in CASES if case.name == "family")
DUMP_MODES: Final = ((), ("--stop",))
IO_URING: Final = "io_uring, which cannot be checkpointed"
USERFAULTFD: Final = "cannot save: anon anon_inode:[userfaultfd]"
OUTSIDE_SOCKET: Final = "a unix socket is connected to a process outside the tree"
DELAYS_S: Final = tuple(random.Random(7).uniform(0.02, 0.5) for _ in range(examples(4)))
"""Moments that nothing marks: from the start of Python to the end of a dump."""


@pytest.mark.parametrize("mode", DUMP_MODES, ids=("running", "stop"))
def test_killed_crckpt_leaves_the_tree_running(crckpt: Crckpt, mode: tuple[str, ...]) -> None:
    """After SIGKILL of crckpt, CRIU alone resumes the tree and removes its network lock.

    gc removes the unfinished files.
    """
    with started(DIALOGUE) as tree:
        for name in MOMENTS:
            _killed_at(name, crckpt, tree, mode)
        for delay in DELAYS_S:
            dump = _dump(crckpt, tree, mode)
            _wait(dump, delay)
            _assert_consistent(crckpt, tree, orphans_of(dump))
        left = crckpt.run("gc", "--json").document["result"]["leftovers"]
        assert len([path for path in left if path.startswith("tmp/")]) >= len(MOMENTS) / 2
        assert not list(crckpt.store.glob("tmp/*"))
        assert crckpt.run("gc", "--json").document["result"]["leftovers"] == []
        assert len(checkpoints(crckpt)) == manifests(crckpt.store)
        crckpt.run("verify", "--all")
        crckpt.run("dump", str(tree.pid), "job", "--tcp", "keep")
        assert_runs_on(tree, frozenset())


def test_gc_succeeds_while_an_orphaned_criu_writes_images(crckpt: Crckpt) -> None:
    """CRIU gives up and resumes the tree. A second gc removes what CRIU has written."""
    with started(LARGE_PROGRAM) as tree:
        for _ in range(2):
            orphans = _orphan_criu_amid_images(crckpt, tree)
            collect_garbage(Repository.open(crckpt.store))
            wait_ended(orphans)
            assert_runs_on(tree, frozenset())
        crckpt.run("gc")
        assert not list(crckpt.store.glob("tmp/*"))
        assert checkpoints(crckpt) == ()


@pytest.mark.parametrize(
    ("number", "mode", "names"),
    [
        (signal.SIGINT, (), tuple(MOMENTS)),
        (signal.SIGINT, ("--stop",), tuple(MOMENTS)),
        (signal.SIGTERM, ("--stop",), ("frozen", "inventory", "packing")),
    ],
    ids=("int", "int-stop", "term-stop"),
)
def test_interrupted_dump_reports_that_the_tree_runs_on(
    crckpt: Crckpt, number: signal.Signals, mode: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """The dump gets ^C, which reaches crckpt's whole process group, or SIGTERM. Nothing is left behind."""
    with started(DIALOGUE) as tree:
        for name in names:
            before = manifests(crckpt.store)
            status, output = _interrupted_at(name, number, crckpt, tree, mode)
            was_made = manifests(crckpt.store) > before
            assert not list(crckpt.store.glob("tmp/*"))
            if status == 0:
                assert was_made
                _bring_back(crckpt, tree)
                continue
            assert status == 130, output
            assert output.startswith(f"crckpt: interrupted by {number.name}; ")
            begun = "was made" if was_made else "(no checkpoint was made|nothing was changed)"
            assert re.search(rf"{begun}[;,] the tree keeps running\n$", output)
            assert output.count("\n") == 1
            assert_runs_on(tree, frozenset())
        # The only leftovers are what was cached of a pack that was finished before its manifest.
        left = crckpt.run("gc", "--json").document["result"]["leftovers"]
        assert all(path.startswith("cache/") for path in left), left


def test_interrupted_dump_ends_a_criu_that_is_blocked(crckpt: Crckpt) -> None:
    """CRIU may wait for memory of the tree that is not served. CRIU is ended, and the tree keeps running."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    with started(COUNTER) as tree:
        dump = _dump_at("frozen", crckpt, tree)
        dump.send_signal(signal.SIGSTOP)  # so that it starts no more while we look
        criu = [found.pid for found in psutil.Process(dump.pid).children(recursive=True)]
        # What waits for a debugger is deaf to SIGCONT, too: PTRACE_SEIZE, PTRACE_INTERRUPT.
        assert [trace(request, pid, 0, 0) for pid in criu for request in (0x4206, 0x4207)] == [0, 0] * len(criu)
        # The kernel reports the end of a process first to its debugger, and then to its parent.
        debuggers = [threading.Thread(target=_wait_for_end, args=(pid,)) for pid in criu]
        for debugger in debuggers:
            debugger.start()
        dump.send_signal(signal.SIGCONT)
        dump.send_signal(signal.SIGINT)
        try:
            _, error = dump.communicate(timeout=ENDS_WITHIN_S)
        finally:
            for pid in criu:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for debugger in debuggers:
                debugger.join()
        assert error.startswith("crckpt: interrupted by SIGINT; ")
        assert criu
        wait_ended(criu)
        if dump.returncode == 22:  # the process was executing a call for CRIU
            assert f"no checkpoint was made; these processes of the tree have ended: {tree.pid}" in error
            return
        assert dump.returncode == 130
        assert_runs_on(tree, frozenset())
        assert checkpoints(crckpt) == ()


def _wait_for_end(pid: int) -> None:
    status = 0x7F
    while os.WIFSTOPPED(status):
        _, status = os.waitpid(pid, 0x40000000)  # __WALL


def test_interruption_while_crckpt_starts_prints_one_line(crckpt: Crckpt) -> None:
    """crckpt never prints a traceback, even while it is still importing modules."""
    with started(COUNTER) as tree:
        for delay in (0.0, *DELAYS_S):
            dump = _dump(crckpt, tree, ())
            wait_for(partial(_catches_sigterm, dump.pid), ENDS_WITHIN_S, "crckpt to start")
            _wait(dump, delay)
            if dump.returncode is None:  # else it was quicker than that
                os.killpg(dump.pid, signal.SIGINT)
            out, error = dump.communicate(timeout=ENDS_WITHIN_S)
            assert (dump.returncode, bool(out)) in ((130, False), (0, True)), error
            assert not error or re.fullmatch(r"crckpt: interrupted by SIGINT.*\n", error)
            assert_runs_on(tree, frozenset())


@pytest.mark.parametrize("name", ["log", "frozen", "images"])
def test_dump_reports_that_criu_was_killed(crckpt: Crckpt, name: str) -> None:
    """When CRIU is killed, the kernel releases the tree, and crckpt reports the state of the tree.

    A process may die that was executing a call for CRIU at that moment. The message names this process.
    """
    with started(FAMILY) as tree:
        # The first CRIU on a host tests the kernel with child processes that outlive it.
        crckpt.run("dump", str(tree.pid), "other")
        pids = tree.pids()
        status, output = _with_criu_killed_at(name, crckpt, tree)
        assert "CRIU ended with signal 9" in output
        ended_pids = [str(pid) for pid in pids if not runs(pid)]
        if str(tree.pid) in ended_pids:
            assert status == 22
            assert f"no checkpoint was made; these processes of the tree have ended: {tree.pid}" in output
            return
        ended = f" without {' '.join(ended_pids)}, which has ended" if ended_pids else ""
        assert status == 21
        assert f"no checkpoint was made; the tree keeps running{ended}\n" in output
        assert not list(crckpt.store.glob("tmp/*"))
        if not ended_pids:
            assert_runs_on(tree, frozenset())
            crckpt.run("dump", str(tree.pid), "job")


def _is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_process_killed_while_held_is_not_checkpointed(crckpt: Crckpt) -> None:
    """The state of that process is incomplete: no checkpoint is made, and the others keep running."""
    with started(FAMILY) as tree:
        dump = crckpt.start("dump", str(tree.pid), "job", "--stop", CRCKPT_STOP_AT="hold.read")
        wait_for(partial(_is_stopped, dump.pid), ENDS_WITHIN_S, "crckpt to be in the hold")
        killed = tree.pids()[-1]
        os.kill(killed, signal.SIGKILL)
        wait_ended((killed,))
        dump.send_signal(signal.SIGCONT)
        _, error = dump.communicate(timeout=ENDS_WITHIN_S)
        assert dump.returncode == 21, error
        assert f"task {killed} was killed while it was frozen" in error
        assert f"no checkpoint was made; the tree keeps running without {killed}, which has ended" in error
        assert checkpoints(crckpt) == ()
        assert not is_traced(tree)


def test_message_says_that_the_tree_runs_on_if_criu_was_killed_after_the_checkpoint_was_stored(crckpt: Crckpt) -> None:
    """The checkpoint exists, but the tree was not ended. The message says so."""
    with started(FAMILY) as tree:
        dump = crckpt.start("dump", str(tree.pid), "job", "--stop", CRCKPT_STOP_AT="pack.rename")
        wait_for(partial(_is_stopped, dump.pid), ENDS_WITHIN_S, "crckpt to store")
        kill_below(dump.pid)
        dump.send_signal(signal.SIGCONT)
        _, error = dump.communicate(timeout=ENDS_WITHIN_S)
        assert dump.returncode == 21, error
        (made,) = checkpoints(crckpt)
        assert f"checkpoint {made[:12]} was made; the tree keeps running\n" in error
        assert_runs_on(tree, frozenset())


@pytest.mark.parametrize("mode", DUMP_MODES, ids=("running", "stop"))
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("unix", OUTSIDE_SOCKET),
        ("io_uring", IO_URING),
        ("userfaultfd", USERFAULTFD),
    ],
)
def test_dump_that_criu_refuses_is_explained(crckpt: Crckpt, kind: str, cause: str, mode: tuple[str, ...]) -> None:
    """CRIU fails after it has locked the connection. The message names the cause, and the tree is as before."""
    with open_workdir() as workdir, _peer(workdir, kind), Tree(_holding(kind), workdir) as tree:
        assert tree.facts()[""]["held"]
        words = ("dump", str(tree.pid), "job", "--tcp", "keep", "--no-preflight", "--force", *mode)
        error = crckpt.run(*words, "--json", status=21).document["error"]
        assert cause in error["message"]
        assert error["message"].endswith("; no checkpoint was made; the tree keeps running")
        assert error["hint"]
        assert any("Error" in line for line in error["causes"])
        assert_runs_on(tree, frozenset())
        assert not list(crckpt.store.glob("tmp/*"))
        assert manifests(crckpt.store) == 0


@pytest.mark.parametrize(
    ("kind", "key", "words"),
    [
        ("unix", "unix-outside", "PID {pid} (a unix socket to {workdir}/peer.sock) is connected to a process outside"),
        ("io_uring", "io-uring", IO_URING),
        ("userfaultfd", "device", USERFAULTFD),
        ("vsock", "socket-family", "a socket of family 40 cannot be saved"),
        ("mptcp", "protocol", "a socket uses IP protocol 262"),
    ],
)
def test_objects_that_cannot_be_saved_are_reported_before_the_freeze(
    crckpt: Crckpt, kind: str, key: str, words: str
) -> None:
    """The tree is not frozen. A forced dump is explained with the same words, unless CRIU names less."""
    with open_workdir() as workdir, _peer(workdir, kind), Tree(_holding(kind), workdir) as tree:
        assert tree.facts()[""]["held"]
        result = crckpt.run("doctor", str(tree.pid), "--json", status=24).document["result"]
        (refusal,) = (blocker for blocker in result["blockers"] if blocker["key"] != "tcp")
        assert refusal["key"] == key
        assert words.format(pid=tree.pid, workdir=workdir) in refusal["what"]
        forced = ("dump", str(tree.pid), "job", "--tcp", "keep", "--no-preflight", "--json")
        error = crckpt.run(*forced, status=21).document["error"]
        assert kind == "unix" or refusal["what"] in error["message"]
        assert error["hint"] == refusal["remedy"]
        assert_runs_on(tree, frozenset())


def test_stopped_tree_stays_stopped(crckpt: Crckpt) -> None:
    """A tree that was stopped by SIGSTOP stays stopped after a dump and after a restore, until it gets SIGCONT."""
    with started(COUNTER) as tree:
        before = tree.counters()
        os.kill(tree.pid, signal.SIGSTOP)
        _wait_stopped(tree)
        crckpt.run("dump", str(tree.pid), "job")
        _wait_stopped(tree)
        os.kill(tree.pid, signal.SIGCONT)
        tree.wait_growth(before)
        os.kill(tree.pid, signal.SIGSTOP)
        _wait_stopped(tree)
        crckpt.run("dump", str(tree.pid), "job", "--stop")
        tree.wait_gone()
        crckpt.run("restore", "job", "--detach")
        _wait_stopped(tree)
        before = tree.counters()
        os.kill(tree.pid, signal.SIGCONT)
        tree.wait_growth(before)


def test_second_concurrent_dump_of_a_tree_does_not_freeze_it(crckpt: Crckpt) -> None:
    """Only one dump can hold the tree: the second waits, or is refused with a message that says so."""
    with started(DIALOGUE) as tree:
        for _ in range(examples(4)):
            dumps = [_dump(crckpt, tree, ()) for _ in range(2)]
            ends = [(dump, dump.communicate(timeout=ENDS_WITHIN_S)[1]) for dump in dumps]
            assert any(dump.returncode == 0 for dump, _ in ends), ends
            for dump, output in ends:
                assert dump.returncode in (0, 21, 24), output
                assert dump.returncode == 0 or "by process" in output or "cannot be stopped" in output
            assert_runs_on(tree, frozenset())
        assert not list(crckpt.store.glob("tmp/*"))
        crckpt.run("verify", "--all")


def _with_criu_killed_at(name: str, crckpt: Crckpt, tree: Tree) -> tuple[int, str]:
    """Kill CRIU at this moment of a dump. If CRIU was faster, try it with another dump."""
    for _ in range(5):
        dump = _dump_at(name, crckpt, tree)
        kill_below(dump.pid)
        _, error = dump.communicate(timeout=ENDS_WITHIN_S)
        if dump.returncode != 0:
            return dump.returncode, error
    raise AssertionError("CRIU always was faster")


def _interrupted_at(
    name: str, number: signal.Signals, crckpt: Crckpt, tree: Tree, mode: tuple[str, ...]
) -> tuple[int, str]:
    dump = _dump(crckpt, tree, mode)
    if wait_for_moment(MOMENTS[name], crckpt.store, tree, dump):
        os.killpg(dump.pid, number)
    _, error = dump.communicate(timeout=ENDS_WITHIN_S)
    return dump.returncode, error


def _killed_at(name: str, crckpt: Crckpt, tree: Tree, mode: tuple[str, ...]) -> None:
    """Kill crckpt at this moment of a dump. If the moment is over too soon, try it with another dump."""
    # The manifest is complete only for a short time, so crckpt stops before it renames the manifest.
    stops = {"CRCKPT_STOP_AT": "manifest-directory.rename"} if name == "manifest" else {}
    for _ in range(5):
        dump = _dump(crckpt, tree, mode, **stops)
        is_there = wait_for_moment(MOMENTS[name], crckpt.store, tree, dump)
        _assert_consistent(crckpt, tree, orphans_of(dump))
        if is_there:
            return
    raise AssertionError(f"{name}: the dump always was faster")


def _assert_consistent(crckpt: Crckpt, tree: Tree, orphans: tuple[int, ...]) -> None:
    """Check after the end of CRIU that the tree runs or, if its checkpoint is complete, can be restored."""
    wait_ended(orphans)
    if not _bring_back(crckpt, tree):
        assert_runs_on(tree, frozenset())


def _bring_back(crckpt: Crckpt, tree: Tree) -> bool:
    """Restore a tree that a successful `--stop` has ended; return whether the dump had succeeded."""
    if psutil.pid_exists(tree.pid) and psutil.Process(tree.pid).status() != psutil.STATUS_ZOMBIE:
        return False
    tree.wait_gone()
    assert network_locks(), "the connection of a stopped tree is not guarded"
    crckpt.run("restore", "job", "--detach", "--tcp", "keep")
    assert_runs_on(tree, frozenset())
    return True


def _dump(crckpt: Crckpt, tree: Tree, mode: tuple[str, ...], **environment: str) -> subprocess.Popen[str]:
    tcp = ("--tcp", tree.case.tcp) if tree.case.tcp else ()
    return crckpt.start("dump", str(tree.pid), "job", *tcp, *mode, **environment)


def _dump_at(name: str, crckpt: Crckpt, tree: Tree, **environment: str) -> subprocess.Popen[str]:
    """A dump that has reached this moment. If the moment is over too soon, another dump is started."""
    for _ in range(20):
        dump = _dump(crckpt, tree, (), **environment)
        if wait_for_moment(MOMENTS[name], crckpt.store, tree, dump):
            return dump
    raise AssertionError(f"{name}: the dump always was faster")


def _orphan_criu_amid_images(crckpt: Crckpt, tree: Tree) -> tuple[int, ...]:
    """A CRIU that still writes images after its crckpt was killed. If CRIU was faster, another dump is started."""
    for _ in range(5):
        # crckpt stops after CRIU has ended, so it makes no checkpoint even if the test sends its signal too late.
        dump = _dump_at("images", crckpt, tree, CRCKPT_STOP_AT="pending.create")
        if orphans := orphans_of(dump):
            return orphans
    raise AssertionError("CRIU always was faster")


def _wait(dump: subprocess.Popen[str], seconds: float) -> None:
    try:
        dump.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _catches_sigterm(pid: int) -> bool:
    """Python by itself catches SIGINT only."""
    caught = re.search(r"^SigCgt:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def _wait_stopped(tree: Tree) -> None:
    wait_for(lambda: psutil.Process(tree.pid).status() == psutil.STATUS_STOPPED, 60, "the tree to be stopped")


def _holding(kind: str) -> Case:
    return Case(kind, (PYTHON, str(PROGRAMS / "dialogue.py"), "{workdir}", "--hold", kind), tcp="keep")


@contextmanager
def _peer(workdir: Path, kind: str) -> Iterator[None]:
    """A process outside the tree that accepts one connection at `workdir`/peer.sock, for `unix`."""
    if kind != "unix":
        yield
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(workdir / "peer.sock"))
        listener.listen()
        taken: list[socket.socket] = []
        threading.Thread(target=lambda: taken.append(listener.accept()[0]), daemon=True).start()
        try:
            yield
        finally:
            for line in taken:
                line.close()
