"""A tree's namespaces must not let it run code with our rights, or be ended without a way to restore it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt
from stopped_trees import BY_NAME, JOB
from trees import NOBODY, PROGRAMS, PYTHON, Case, Tree, started, wait_for

from crckpt.criu.command import Paths, dump_command
from crckpt.model import DumpOptions
from crckpt.tracking.preload.library import dump_words

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

REFUSED: Final = 24
AS_NOBODY: Final = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
MOUNTS: Final = Case(
    "mounts",
    ("unshare", "--mount", "sh", "-c", f"exec </dev/null >/dev/null 2>&1 {PYTHON} {{programs}}/counter.py {{workdir}}"),
)
COUNTER: Final = (PYTHON, "{workdir}/programs/counter.py", "{workdir}")
TRAP_SCRIPT: Final = """#!/bin/sh
echo "$0 $*: $(cat /proc/self/status | grep CapEff) $(cat /proc/self/uid_map)" >> {workdir}/won
"""
PROGRAM_THAT_ENTERS_A_USER_NAMESPACE: Final = """
import ctypes, pathlib, sys, time
work = pathlib.Path(sys.argv[1])
(work / "ready").touch()
while not (work / "go").exists():
    time.sleep(0.02)
assert ctypes.CDLL(None).unshare(0x10000000) == 0
for name, text in (("uid_map", "0 0 1"), ("setgroups", "deny"), ("gid_map", "0 0 1")):
    pathlib.Path("/proc/self", name).write_text(text)
(work / "gone").touch()
time.sleep(300)
"""
SCRIPT_THAT_REPLACES_CRIU: Final = """
set -e
printf '%s' "$0" > trap
chmod 755 trap
for place in /usr/local/lib/crckpt /var/cache; do mount -t tmpfs none $place; done
mkdir -p /usr/local/lib/crckpt/criu
cp trap /usr/local/lib/crckpt/criu/criu
exec "$@"
"""


def test_dump_of_a_tree_in_a_user_namespace_is_refused(crckpt: Crckpt) -> None:
    """The tree would be ended, and no restore could restart it."""
    case = Case("user", (*AS_NOBODY, "unshare", "--user", "--map-root-user", *COUNTER), user=NOBODY)
    with started(case) as tree:
        _is_refused(crckpt, tree, "runs in a user namespace other than crckpt's")


def test_programs_of_an_unprivileged_user_are_not_run_with_our_rights(crckpt: Crckpt) -> None:
    """The user has mounts of its own, with a program in the place of our CRIU."""
    in_own_mounts = (
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        SCRIPT_THAT_REPLACES_CRIU,
        TRAP_SCRIPT,
    )
    case = Case("mounts", (*AS_NOBODY, *in_own_mounts, *COUNTER), user=NOBODY)
    with started(case) as tree:
        _is_refused(crckpt, tree, "runs in a user namespace other than crckpt's")


@pytest.mark.parametrize("command", ["doctor", "dump"])
def test_dump_of_a_tree_in_a_session_from_outside_its_pid_namespace_is_refused(crckpt: Crckpt, command: str) -> None:
    """The tree is a background program of the namespace's init, and CRIU finds no leader of its session."""
    shell = "exec </dev/null >/dev/null 2>&1; sleep 1000 & wait"
    with subprocess.Popen(("unshare", "--pid", "--fork", "--kill-child", "sh", "-c", shell)) as unshare:
        try:
            init = psutil.Process(unshare.pid)
            wait_for(
                lambda: [below.name() for below in init.children(recursive=True)] == ["sh", "sleep"], 5, "the shell"
            )
            pid = init.children(recursive=True)[1].pid
            result = crckpt.run(command, str(pid), status=REFUSED)
            assert f"the session leader of process {pid} is outside its PID namespace" in f"{result.out}{result.err}"
            assert "setsid PROGRAM" in f"{result.out}{result.err}"
        finally:
            unshare.kill()


@pytest.mark.parametrize("kind", ["mount", "net"])
def test_namespace_owned_by_another_user_namespace_is_refused(crckpt: Crckpt, kind: str) -> None:
    """The namespace is also refused if the tree itself is in our user namespace."""
    with (
        _sleeping((*AS_NOBODY, "unshare", "--user", "--map-root-user", "--mount", "--net")) as owner,
        started(Case("entered", ("nsenter", "--target", str(owner), f"--{kind}", *COUNTER), user=NOBODY)) as tree,
    ):
        name = {"mount": "mnt"}.get(kind, kind)
        _is_refused(
            crckpt, tree, f"the {name} namespace of process {tree.pid} (python3) belongs to a user namespace other than"
        )


@pytest.mark.parametrize("proc", ["real", "masked"])
def test_programs_in_mounts_writable_by_the_tree_are_not_run(crckpt: Crckpt, criu: Path, proc: str) -> None:
    """The service runs in a mount namespace of root's, as systemd creates it, and is dumped and restored unchanged."""
    with started(_hostile(criu, proc)) as tree:
        before = tree.counters()
        (warning,) = crckpt.run("dump", str(tree.pid), JOB, "--json").document["result"]["warnings"]
        assert "has its own mount namespace" in warning
        tree.wait_growth(before)
        crckpt.run("dump", str(tree.pid), JOB, "--stop", "--tcp", "keep")
        tree.wait_gone()
        before = tree.counters()
        assert not (tree.workdir / "won").exists(), (tree.workdir / "won").read_text()
        (tree.workdir / "root").rmdir()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{tree.pid}/status").read_text().splitlines())
        assert status["Uid"].split() == [str(NOBODY)] * 4
        assert int(status["CapEff"], 16) == 0
        assert not (tree.workdir / "won").exists(), (tree.workdir / "won").read_text()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("unix-sockets", ("--mount",)),
        ("events", ("--mount",)),
        ("deleted-files", ("--mount",)),
        ("locks", ("--mount", "--ipc", "--uts")),
        ("tcp-listen", ("--mount", "--net")),
    ],
)
def test_open_files_in_a_private_mount_namespace_are_restored(
    crckpt: Crckpt, name: str, kinds: tuple[str, ...]
) -> None:
    """CRIU finds files and mounts as if it had been started in that namespace."""
    case = BY_NAME[name]
    within = ("unshare", *kinds, "sh", "-c", 'exec </dev/null >/dev/null 2>&1; ip link set lo up; exec "$@"', "sh")
    with started(replace(case, argv=(*within, *case.argv))) as tree:
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB)
        tree.wait_growth(before)
        crckpt.run("dump", str(tree.pid), JOB, "--stop", "--force")
        tree.wait_gone()
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        tree.wait_verified()


def test_dump_of_a_tree_whose_mount_namespace_has_no_proc_fails(crckpt: Crckpt, criu: Path) -> None:
    """Programs in the namespace read /proc with the rights of the program."""
    with started(_hostile(criu, "empty")) as tree:
        before = tree.counters()
        error = crckpt.run("dump", str(tree.pid), JOB, "--stop", "--json", status=21).document["error"]
        assert "/proc" in error["message"]
        tree.wait_growth(before)
        assert not (tree.workdir / "won").exists(), (tree.workdir / "won").read_text()


def test_criu_without_library_support_is_not_run_in_mounts_of_a_tree(crckpt: Crckpt, criu: Path) -> None:
    """CRIU is not run there with --no-preflight either."""
    own = crckpt.store.parent / "criu"
    own.write_text(f'#!/bin/sh\nunset CRCKPT_CRIU_PRELOAD\nexec {criu} "$@"\n')
    own.chmod(0o755)
    with started(MOUNTS) as tree:
        for more in ((), ("--no-preflight",)):
            words = ("dump", str(tree.pid), JOB, "--stop", "--json", *more)
            error = crckpt.run(*words, status=REFUSED, CRCKPT_CRIU=str(own)).document["error"]
            assert "does not load crckpt's preload library" in error["message"]
        tree.wait_growth(tree.counters())


def test_criu_does_not_enter_mounts_of_another_owner(crckpt: Crckpt, criu: Path, tmp_path: Path) -> None:
    """A process may change its namespaces after crckpt has looked: the owner is checked when they are entered."""
    with _sleeping((*AS_NOBODY, "unshare", "--user", "--map-root-user", "--mount")) as pid:
        command = dump_command(criu, pid, Paths(tmp_path, tmp_path), DumpOptions(), leave_running=True)
        result = subprocess.run([*dump_words(criu, enter=pid), *command], capture_output=True, text=True, check=False)
        assert result.returncode == 1
        assert "cannot be entered: they belong to another user namespace" in result.stderr
        assert not list(tmp_path.glob("pages-*.img"))


def test_tree_that_later_enters_a_user_namespace_is_not_ended(crckpt: Crckpt, tmp_path: Path) -> None:
    """A tree in a user namespace could not be restored, so `dump --stop` must not end it."""
    script = (sys.executable, "-c", PROGRAM_THAT_ENTERS_A_USER_NAMESPACE, str(tmp_path))
    null = subprocess.DEVNULL
    with subprocess.Popen(script, stdin=null, stdout=null, stderr=null, start_new_session=True) as process:
        try:
            wait_for((tmp_path / "ready").exists, 60, "the program to be ready")
            # Where there is a store, CRIU is started first.
            crckpt.run("dump", str(process.pid), JOB)
            # It is stopped when it has looked at the tree, before it lets CRIU freeze it.
            dump = crckpt.start("dump", str(process.pid), JOB, "--stop", "--json", CRCKPT_STOP_AT="hold.commit")
            wait_for(lambda: psutil.Process(dump.pid).status() == psutil.STATUS_STOPPED, 60, "crckpt to have looked")
            (tmp_path / "go").touch()
            wait_for((tmp_path / "gone").exists, 60, "the program to be elsewhere")
            dump.send_signal(signal.SIGCONT)
            out, _ = dump.communicate(timeout=60)
            assert dump.returncode == 21, out
            assert "changed its user namespace" in out
            assert "the tree keeps running" in out
            assert process.poll() is None
        finally:
            process.kill()


def test_nested_network_namespace_is_restored(crckpt: Crckpt) -> None:
    """For a tree with its own network, doctor reports no blocker, and the restore succeeds."""
    nested = f"unshare --net {PYTHON} {{programs}}/counter.py {{workdir}}/nested & exec {' '.join(COUNTER)}"
    case = Case("nested", ("unshare", "--net", "sh", "-c", f"mkdir {{workdir}}/nested; {nested}"), user=NOBODY)
    with started(case) as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        assert result["blockers"] == []
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        networks = {Path(f"/proc/{pid}/ns/net").readlink() for pid in (*tree.pids(), "self")}
        assert len(tree.pids()) == 2
        assert len(networks) == 3


def _hostile(criu: Path, proc: str) -> Case:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    hostile = ("sh", str(PROGRAMS / "hostile_root.sh"), "{workdir}", str(criu), proc, *COUNTER)
    return Case("hostile", ("unshare", "--mount", *hostile), user=NOBODY)


def _is_refused(crckpt: Crckpt, tree: Tree, what: str) -> None:
    """Check that every command refuses the tree before it executes or enters anything, and that the tree runs."""
    before, target = tree.counters(), str(tree.pid)
    result = crckpt.run("doctor", target, "--json", status=REFUSED).document["result"]
    assert any(what in found["what"] for found in result["blockers"])
    for words in (("dump", target, JOB), ("dump", target, JOB, "--stop"), ("pre-dump", target, JOB)):
        for more in ((), ("--no-preflight",)):
            error = crckpt.run(*words, *more, "--json", status=REFUSED).document["error"]
            assert what in "".join((error["message"], *error.get("causes", ())))
    assert not (tree.workdir / "won").exists()
    tree.wait_growth(before)


@contextmanager
def _sleeping(within: tuple[str, ...]) -> Iterator[int]:
    """The PID of a process that is `within` something."""
    with subprocess.Popen((*within, "sh", "-c", "echo; exec sleep 300"), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            wait_for(lambda: process.stdout is not None and process.stdout.readline() == b"\n", 60, "it to sleep")
            yield process.pid
        finally:
            process.kill()
