"""A restored program of a user gains nothing by files that CRIU has opened again as root."""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from control_groups import make_group
from stopped_trees import JOB, stopped
from trees import NOBODY, PYTHON, Case, Tree, started

from crckpt.host.proc import effective_capabilities

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 23
AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
PROGRAM_WITH_AN_OPEN_FILE: Final = """
import os, sys
path, flags = sys.argv[2:]
os.dup2(os.open(path, int(flags)), 60)
sys.argv[2:] = []
from counter import main
main()
"""
PROGRAM_WITH_THE_MEMORY_OF_ITS_CHILD: Final = """
import os, sys, time
stdin, keep = os.pipe()
go, tell = os.pipe()
if not (child := os.fork()):
    os.close(tell)
    os.read(go, 1)
    os.dup2(stdin, 0)
    os.closerange(3, 256)
    os.execv(sys.argv[2], sys.argv[2:])
os.dup2(os.open("/proc/%d/mem" % child, os.O_RDWR), 60)
os.write(tell, b"x")
while b"cat" not in open("/proc/%d/cmdline" % child, "rb").read():
    time.sleep(0.01)
sys.argv[2:] = []
from counter import main
main()
"""
PROGRAM_THAT_EXECUTES_ANOTHER: Final = """
import os, sys
if os.fork():
    os.wait()
os.dup2(os.open("/proc/self/mem", os.O_RDWR), 60)
becomes = "import os; os.geteuid() or (os.setgid(0), os.setuid(0))"
os.execv(sys.argv[2], [sys.argv[2], "-c", becomes + "; from counter import main; main()", sys.argv[1]])
"""
CAP_SYS_RESOURCE: Final = 24
DAC_OVERRIDE: Final = struct.pack("<5I", 0x02000001, 1 << 1, 0, 0, 0)
"""The value of security.capability (linux/capability.h): permitted and effective."""


def as_nobody(code: str, *words: str) -> Case:
    """A program of the user nobody that runs this code."""
    program = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", code, "{workdir}")
    return Case("kernel-file", (*AS_NOBODY, *program, *words), user=NOBODY)


def refused(crckpt: Crckpt, tree: Tree, path: str) -> None:
    """Check that the restore and the rehearsal are refused because of this path."""
    error = crckpt.run("restore", JOB, "--detach", status=FAILED).err
    assert f"process {tree.pid} (python3) would have {path} open as if root had opened it" in error
    assert not Path(f"/proc/{tree.pid}").exists()
    assert path in crckpt.run("rehearse", JOB, status=25).err


@contextmanager
def own_group() -> Iterator[Path]:
    """A control group that belongs to nobody, as a unit with Delegate= and User= has one."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    root = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    if root is None:
        pytest.skip("there are no control groups of version 2")
    group = make_group(root)
    try:
        for path in (group, group / "cgroup.procs"):
            os.chown(path, NOBODY, NOBODY)
        yield group
    finally:
        group.rmdir()


def test_cgroup_procs_is_not_opened_for_a_user(crckpt: Crckpt) -> None:
    with own_group() as group:
        procs = str(group / "cgroup.procs")
        with stopped(crckpt, as_nobody(PROGRAM_WITH_AN_OPEN_FILE, procs, f"{os.O_WRONLY}"), "--force") as tree:
            refused(crckpt, tree, procs)


def test_dump_warns_that_an_open_cgroup_procs_prevents_the_restore(crckpt: Crckpt) -> None:
    """The warning comes before the freeze. A program that cannot be restored is not ended."""
    with own_group() as group:
        procs = str(group / "cgroup.procs")
        with started(as_nobody(PROGRAM_WITH_AN_OPEN_FILE, procs, f"{os.O_WRONLY}")) as tree:
            warning = f"process {tree.pid} (python3) has {procs} open at fd "
            refusal = crckpt.run("dump", str(tree.pid), JOB, "--stop", status=24).err
            assert warning in refusal
            assert "a restore is refused without --allow-weaker" in refusal
            assert warning in crckpt.run("doctor", str(tree.pid)).out
            assert warning in crckpt.run("dump", str(tree.pid), JOB).out
            tree.wait_growth(tree.counters())


def test_memory_of_a_child_with_more_rights_is_not_opened(crckpt: Crckpt) -> None:
    """The kernel had bound the descriptor to the memory that the child had before it executed the program."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        cat = Path(place, "cat")
        cat.write_bytes(Path("/bin/cat").read_bytes())
        cat.chmod(0o755)
        os.setxattr(cat, "security.capability", DAC_OVERRIDE)
        with stopped(crckpt, as_nobody(PROGRAM_WITH_THE_MEMORY_OF_ITS_CHILD, str(cat)), "--force") as tree:
            error = crckpt.run("restore", JOB, "--detach", status=FAILED).err
            assert f"process {tree.pid} (python3) would have /proc/" in error
            assert "/mem open as if root had opened it" in error


@pytest.mark.parametrize("gains", ["a capability", "root"])
def test_memory_of_an_executed_program_with_more_rights_is_not_opened(crckpt: Crckpt, gains: str) -> None:
    """A user opens the memory of a process, and executes a program with more rights in it: its output would go there.

    The kernel had bound the descriptor to what the process was before.
    """
    if gains == "root" and CAP_SYS_RESOURCE not in effective_capabilities():
        pytest.skip("needs CAP_SYS_RESOURCE, to dump processes of two users")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        python = Path(place, "python3")
        python.write_bytes(Path(PYTHON).read_bytes())
        python.chmod(0o4755 if gains == "root" else 0o755)
        if gains == "a capability":
            os.setxattr(python, "security.capability", DAC_OVERRIDE)
        with stopped(crckpt, as_nobody(PROGRAM_THAT_EXECUTES_ANOTHER, str(python)), "--force") as tree:
            error = crckpt.run("restore", JOB, "--detach", status=FAILED).err
            assert re.search(r"would have /proc/\d+/mem open as if root had opened it", error)
            assert not Path(f"/proc/{tree.pid}").exists()


@pytest.mark.parametrize("path", ["/proc/self/maps", "/proc/meminfo", "/sys/devices/system/cpu/online"])
def test_restored_program_of_a_user_has_harmless_kernel_files_open(crckpt: Crckpt, path: str) -> None:
    with stopped(crckpt, as_nobody(PROGRAM_WITH_AN_OPEN_FILE, path, f"{os.O_RDONLY}"), "--force") as tree:
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert Path(f"/proc/{tree.pid}/fd/60").readlink().name == Path(path).name


def test_restored_program_of_root_has_its_kernel_files_open(crckpt: Crckpt) -> None:
    words = (
        "env",
        "PYTHONPATH={programs}",
        PYTHON,
        "-c",
        PROGRAM_WITH_AN_OPEN_FILE,
        "{workdir}",
        "/proc/self/pagemap",
        "0",
    )
    with stopped(crckpt, Case("kernel-file", words), "--force") as tree:
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_file_that_root_replaced_by_its_own_is_not_opened_for_the_program(crckpt: Crckpt) -> None:
    """Root has replaced a key of the program's user by a new key of its own."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        key = Path(place, "key")

        def write(owner: int) -> None:
            key.unlink(missing_ok=True)
            key.write_text("0123456789")
            key.chmod(0o400)
            os.chown(key, owner, owner)
            os.utime(key, (0, 0))

        write(NOBODY)
        with stopped(crckpt, as_nobody(PROGRAM_WITH_AN_OPEN_FILE, str(key), f"{os.O_RDONLY}")) as tree:
            write(0)
            assert f"somebody may have replaced {key}" in crckpt.run("restore", JOB, "--detach", status=FAILED).err
            write(NOBODY)
            before = tree.counters()
            crckpt.run("restore", JOB, "--detach")
            tree.wait_growth(before)
