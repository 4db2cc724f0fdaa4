"""A tree that is restored into PIDs of its own: the old ones inside, others on the host."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt
from stopped_trees import (
    BY_NAME,
    JOB,
    ObstructedCriu,
    detached_in_namespace,
    foreground,
    hang_ups_ignored,
    program,
    staging,
    stopped,
    taken,
)
from trees import PYTHON, Case, Tree, runs, started, wait_for

from crckpt.criu.find import find

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 23
STATUS: Final = 13
WITHIN_S: Final = 60
IN_NAMESPACE: Final = "--new-pid-namespace"


def test_restored_tree_has_its_old_pids_in_the_new_namespace_and_can_be_dumped_again(crckpt: Crckpt) -> None:
    """The tree is dumped by its PID on the host.

    Its checkpoint can be restored into another namespace and on the host.
    """
    with stopped(crckpt, BY_NAME["family"]) as tree:
        facts, first = tree.facts(), tree.counters()
        with taken(tree.pid, "PID"), detached_in_namespace(crckpt) as init:
            tree.wait_growth(first)
            root = _root(init)
            assert _inner(root) == tree.pid != root
            assert len(psutil.Process(root).children(recursive=True)) == 4
            second = tree.counters()
            crckpt.run("dump", str(root), JOB, "--stop")
            wait_for(lambda: not runs(init), WITHIN_S, "the namespace to end with its tree")
            with detached_in_namespace(crckpt) as other:
                tree.wait_growth(second)
                assert _inner(_root(other)) == tree.pid
                third = tree.counters()
                crckpt.run("dump", str(_root(other)), JOB, "--stop")
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(third)
        assert {name: part.pid for name, part in tree.parts().items()}[""] == tree.pid
        tree.wait_verified()
        assert tree.facts() == facts
        assert staging(crckpt) == ()


def test_tree_from_a_pid_namespace_is_restored(crckpt: Crckpt, tmp_path: Path) -> None:
    """CRIU alone has dumped the tree. Its first process has PID 1 in its namespace, which is not crckpt's."""
    with _imported(crckpt, tmp_path, (PYTHON, "{programs}/counter.py", "{workdir}")) as tree:
        before = tree.counters()
        with detached_in_namespace(crckpt):
            tree.wait_growth(before)
            tree.wait_verified()


def test_files_of_a_tree_from_a_pid_namespace_are_checked(crckpt: Crckpt, tmp_path: Path) -> None:
    """The kernel lets an unprivileged program use files that root has opened again."""
    holds = "held = open('/proc/self/pagemap', 'rb'); from counter import main; main()"
    words = ("setpriv", "--bounding-set=-kill", "env", "PYTHONPATH={programs}", PYTHON, "-c", holds, "{workdir}")
    with _imported(crckpt, tmp_path, words):
        assert "/pagemap" in crckpt.run("restore", JOB, IN_NAMESPACE, "--detach", status=FAILED).err


@contextmanager
def _imported(crckpt: Crckpt, work: Path, words: tuple[str, ...]) -> Iterator[Tree]:
    """A program in a PID namespace of its own, which CRIU alone has dumped, and its images as a checkpoint."""
    with started(Case("apart", ("unshare", "--pid", "--fork", "setsid", *words))) as tree:
        (root,) = psutil.Process(tree.pid).children()
        images = work / "images"
        images.mkdir()
        dumped = (find(None, None).path, "dump", "--tree", str(root.pid), "--images-dir", images)
        subprocess.run(dumped, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        wait_for(lambda: not runs(root.pid), WITHIN_S, "the tree to end")
        crckpt.run("import", str(images), JOB)
        yield tree


def test_dump_without_stop_only_pauses_a_tree_in_its_own_pid_namespace(crckpt: Crckpt) -> None:
    """A dump without --stop only pauses a tree in its own namespace, too."""
    with stopped(crckpt, BY_NAME["threads"]) as tree, detached_in_namespace(crckpt) as init:
        crckpt.run("dump", str(_root(init)), JOB)
        tree.wait_growth(tree.counters())
        assert runs(init)


def test_foreground_restore_passes_signals_and_status(crckpt: Crckpt) -> None:
    """Signals and status pass through crckpt and the namespace's init."""
    with stopped(crckpt, program("record_signals")) as tree:
        before = tree.counters()
        with foreground(crckpt, IN_NAMESPACE) as front:
            tree.wait_growth(before)
            lines: list[str] = []
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                front.send_signal(number)
                lines.append(number.name)
                wait_for(lambda: tree.facts()[""]["signals"] == lines, WITHIN_S, f"{lines} to arrive, and nothing else")
            front.send_signal(signal.SIGUSR2)
            assert front.wait(WITHIN_S) == STATUS


def test_death_by_signal_gives_the_exit_status(crckpt: Crckpt) -> None:
    """The status is 128 plus the signal's number, although the init of the namespace is between."""
    with stopped(crckpt, program("record_signals")) as tree:
        before = tree.counters()
        with foreground(crckpt, IN_NAMESPACE) as front:
            tree.wait_growth(before)
            front.send_signal(signal.SIGHUP)
            assert front.wait(WITHIN_S) == 128 + signal.SIGHUP


def test_program_keeps_running_if_crckpt_ignores_sighup(crckpt: Crckpt) -> None:
    """The program also keeps running if the init of the namespace gets the signal."""
    with stopped(crckpt, program("record_signals")) as tree:
        before = tree.counters()
        with hang_ups_ignored(), foreground(crckpt, IN_NAMESPACE) as front:
            tree.wait_growth(before)
            crckpt_process = psutil.Process(front.pid)
            init, root = crckpt_process.children(recursive=True)[:2]
            for process in (init, root, crckpt_process):
                process.send_signal(signal.SIGHUP)
            front.send_signal(signal.SIGUSR1)
            signals_arrived = "the program to get SIGUSR1 and no other signal"
            wait_for(lambda: tree.facts()[""]["signals"] == ["SIGUSR1"], WITHIN_S, signals_arrived)


def test_detached_namespace_ends_with_its_tree(crckpt: Crckpt) -> None:
    """Neither its init nor the parent of the init outlives the root."""
    with stopped(crckpt, BY_NAME["family"]) as tree, detached_in_namespace(crckpt) as init:
        tree.wait_growth(tree.counters())
        parent, tasks = psutil.Process(init).ppid(), psutil.Process(init).children(recursive=True)
        os.kill(_root(init), signal.SIGKILL)
        wait_for(lambda: not any(map(runs, (parent, init, *(task.pid for task in tasks)))), WITHIN_S, "all to end")


def test_program_outlives_a_killed_crckpt(crckpt: Crckpt) -> None:
    """Once the program runs, it does not need crckpt."""
    with stopped(crckpt, BY_NAME["counter"]) as tree:
        before = tree.counters()
        with foreground(crckpt, IN_NAMESPACE) as front:
            tree.wait_growth(before)
            init = _init()
            front.kill()
            front.wait(WITHIN_S)
            tree.wait_growth(tree.counters())
            os.kill(init, signal.SIGKILL)
        wait_for(lambda: not runs(init), WITHIN_S, "the namespace to end")


@pytest.mark.parametrize("built", [False, True])
def test_crckpt_killed_before_the_tree_runs_leaves_nothing(
    crckpt: Crckpt, obstructed: ObstructedCriu, built: bool
) -> None:
    """Neither the tree nor its namespace is left."""
    with stopped(crckpt, BY_NAME["family"]) as tree:
        before = tree.counters()
        words = (IN_NAMESPACE, "--criu", str(obstructed.path))
        waits = obstructed.waits(committed=False) if built else obstructed.waits_at_first()
        with waits as obstacle, foreground(crckpt, *words) as front:
            obstacle.wait_reached()
            inside = _inside(_init())
            assert (len(inside) > 5) == built
            front.kill()
            front.wait(WITHIN_S)
        wait_for(lambda: not any(map(runs, inside)), WITHIN_S, f"{inside} to end")
        # Nobody waits for the init's parent, which ends by itself once its init has.
        wait_for(lambda: not _makers(), WITHIN_S, "the parent of the init to end")
        with detached_in_namespace(crckpt):
            tree.wait_growth(before)


def test_failed_restore_leaves_no_namespace(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    """The init of the namespace also ends, and nothing is left in the store."""
    with stopped(crckpt, BY_NAME["counter"]) as tree:
        before = tree.counters()
        for committed in (False, True):
            with obstructed.fails(committed=committed):
                result = crckpt.run("restore", JOB, IN_NAMESPACE, "--criu", str(obstructed.path), status=FAILED)
            assert "nothing is left behind" in result.err
            assert not _makers()
            assert staging(crckpt) == ()
        with detached_in_namespace(crckpt):
            tree.wait_growth(before)


def _root(init: int) -> int:
    """The host's PID of the tree's root."""
    (root,) = psutil.Process(init).children()
    return root.pid


def _inner(pid: int) -> int:
    """The PID that a process has in its own namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))


def _inside(init: int) -> tuple[int, ...]:
    """The host's PIDs of all in the namespace of this init."""
    namespace = Path(f"/proc/{init}/ns/pid").stat().st_ino
    found = []
    for pid in psutil.pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}/ns/pid").stat().st_ino == namespace:
                found.append(pid)
    return tuple(found)


def _init() -> int:
    return max(pid for pid in _makers() if _inner(pid) == 1)


def _makers() -> tuple[int, ...]:
    """PIDs of all that make a namespace for a restore: its init, and the init's parent."""
    running = ((process.pid, process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return tuple(pid for pid, words in running if "crckpt.helper.pid_namespace.init" in words)
