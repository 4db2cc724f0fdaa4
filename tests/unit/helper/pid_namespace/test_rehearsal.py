"""Namespaces for a rehearsal: nothing that is done in them has an effect outside."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from crckpt.errors import HostCannot
from crckpt.helper.pid_namespace.client import Throwaway, throwaway
from crckpt.host import proc
from crckpt.host.namespaces.isolation import SeclusionPlan
from crckpt.host.process import run
from crckpt.host.process.pidfd import watched_exits

ROOT = 2
"""The first that enters: 1 is the init."""


@pytest.fixture(autouse=True, scope="module")
def namespaces_can_be_made() -> None:
    """Skip where namespaces cannot be made."""
    result = run.run(["unshare", "--pid", "--net", "--ipc", "--uts", "--fork", "--mount-proc", "true"])
    if not result.ok:
        pytest.skip(f"no namespaces can be made here: {result.output.strip()}")


def plan(work: Path, *, sockets: tuple[str, ...] = (), cut: tuple[tuple[str, int], ...] = ()) -> SeclusionPlan:
    work.mkdir()
    return SeclusionPlan(str(work), sockets, ("10.9.8.7", "fd00::77"), cut, 64 << 20)


def within(new: Throwaway, *words: str) -> run.Finished:
    kinds = ("--pid", "--mount", "--net", "--ipc", "--uts")
    return run.run(["nsenter", "--target", str(new.init), *kinds, *words])


def test_files_written_in_a_rehearsal_are_visible_only_inside(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("as it was")
    before = (tmp_path / "old").stat()
    script = f"cd {tmp_path}; echo new > old; echo new > new; rm -r gone; echo new > /dev/shm/{os.getpid()}; cat old"
    (tmp_path / "gone").mkdir()
    with throwaway(ROOT, plan(tmp_path / "work")) as new:
        assert within(new, "sh", "-c", script).output == "new\n"
        assert within(new, "cat", f"{tmp_path}/new").output == "new\n"
        assert not within(new, "ls", f"{tmp_path}/gone").ok
        assert new.unwritable == ()
    assert (tmp_path / "old").read_text() == "as it was"
    after = (tmp_path / "old").stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "old", "work"]
    assert not Path(f"/dev/shm/{os.getpid()}").exists()


def test_rehearsal_cannot_write_kernel_settings(tmp_path: Path) -> None:
    with throwaway(ROOT, plan(tmp_path / "work")) as new:
        output = within(new, "sh", "-c", "echo 1 > /proc/sys/vm/swappiness")
        assert "Read-only" in output.output


def test_network_of_a_rehearsal_is_loopback_with_the_addresses(tmp_path: Path) -> None:
    script = (
        "import socket; [socket.create_server((host, 0), family=family) for host, family in "
        "(('127.0.0.1', 2), ('10.9.8.7', 2), ('fd00::77', 10))]; print(socket.if_nameindex())"
    )
    with throwaway(ROOT, plan(tmp_path / "work")) as new:
        assert within(new, "python3", "-c", script).output == "[(1, 'lo')]\n"
        assert not within(new, "python3", "-c", script.replace("10.9.8.7", "10.9.8.6")).ok


def test_rehearsal_does_not_see_sockets_of_the_host_unless_named(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("named", "other")]
    listeners = [socket.socket(socket.AF_UNIX) for _ in paths]
    for listener, path in zip(listeners, paths, strict=True):
        listener.bind(path)
        listener.listen()
    script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    with throwaway(ROOT, plan(tmp_path / "work", sockets=(paths[0],))) as new:
        reached = [within(new, "python3", "-c", script, path) for path in paths]
    for listener in listeners:
        listener.close()
    assert [done.ok for done in reached] == [True, False]
    assert "ConnectionRefusedError" in reached[1].output


def test_rehearsal_cuts_files_back_only_inside(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    with throwaway(ROOT, plan(tmp_path / "work", cut=((str(log), 4),))) as new:
        assert within(new, "cat", str(log)).output == "one\n"
    assert log.read_text() == "one\ntwo\n"


def test_failed_preparation_of_a_rehearsal_is_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    wanted = plan(tmp_path / "work", cut=((missing, 4),))
    with pytest.raises(HostCannot, match=missing), throwaway(ROOT, wanted):
        pytest.fail("there is no such file to cut")


def test_processes_of_a_rehearsal_end_with_its_block(tmp_path: Path) -> None:
    with throwaway(ROOT, plan(tmp_path / "work")) as new:
        left = started(new, "sleep", "60")
        inside = proc.children(left.pid)
    assert left.wait() != 0
    assert proc.wait_until_gone((new.init, *inside), 20) == ()


def test_rehearsal_reports_processes_that_end_early(tmp_path: Path) -> None:
    """The process is reported as by its parent, although it is not our child.

    The root's status is reported at the end.
    """
    with throwaway(ROOT, plan(tmp_path / "work")) as new:
        one, other = started(new, "sleep", "60"), started(new, "sleep", "60")
        (first,), (second,) = proc.children(one.pid), proc.children(other.pid)
        names = [found.ns_pids[-1] for pid in (first, second) if (found := proc.read_process(pid))]
        with watched_exits(new.init, (*names, 999)) as watch:
            watch.wait(names[0], 0)
            assert watch.find_ended() == {}
            os.kill(first, signal.SIGTERM)
            one.wait()
            assert watch.find_ended() in ({names[0]: -signal.SIGTERM}, {names[0]: None})
            os.kill(second, signal.SIGKILL)
            assert watch.wait(names[1], 60) < 60
            assert set(watch.find_ended()) == set(names)
        other.wait()


def started(new: Throwaway, *words: str) -> subprocess.Popen[bytes]:
    """A program that has started in the namespaces."""
    command = ["nsenter", "--target", str(new.init), "--pid", "--mount", "--net", "--ipc", "--uts", *words]
    assert shutil.which(words[0])
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while not proc.children(process.pid):
        assert process.poll() is None
    return process
