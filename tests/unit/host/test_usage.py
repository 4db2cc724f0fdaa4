"""The usage of this host and of processes agrees with the kernel's own numbers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from target_processes import running

from crckpt.host import usage
from crckpt.host.usage import find_criu_processes, read_host_usage, read_process_usage

MEBIBYTE = 1 << 20
BUSY_PROGRAM = """
import time
held = bytearray(b'x' * (64 << 20))
while time.process_time() < 0.3: pass
print('ready', flush=True)
input()
"""


def test_usage_of_a_process_has_its_memory_and_cpu_time() -> None:
    before = datetime.now(UTC)
    with running(sys.executable, "-c", BUSY_PROGRAM) as process:
        used = read_process_usage(process.pid)
        assert used is not None
        assert 64 * MEBIBYTE < used.memory_bytes < 128 * MEBIBYTE
        assert 0.25 < used.cpu_s <= sum(psutil.Process(process.pid).cpu_times()[:2])  # counted in ticks of 10 ms
        # The kernel says when it has started, in whole seconds.
        assert before - timedelta(seconds=2) < used.started < datetime.now(UTC) + timedelta(seconds=2)


def test_ended_process_has_no_usage() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert read_process_usage(ended.pid) is None


def test_usage_of_the_host_has_its_memory_and_disks(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    used = read_host_usage((tmp_path / "not" / "there", shared))
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert used.memory_total == int(fields["MemTotal"].split()[0]) << 10
    assert 0 < used.memory_available < used.memory_total
    disk, memory = used.disks
    assert (disk.directory, disk.total) == (str(tmp_path / "not" / "there"), shutil.disk_usage(tmp_path).total)
    if shared.is_mount():
        assert (memory.mounted_on, memory.kind) == ("/dev/shm", "tmpfs")


@pytest.mark.parametrize("name", ["criu", "crckpt"])
def test_processes_of_criu_and_crckpt_are_found(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    shutil.copy("/usr/bin/sleep", program)
    with running(str(program), "60", ready="") as process:
        comm = Path(f"/proc/{process.pid}/comm")
        while comm.read_text() != f"{name}\n":  # the kernel sets it last
            time.sleep(0.01)
        (found,) = (found for found in find_criu_processes() if found.pid == process.pid)
        assert (found.program, found.module) == (name, "")
        assert found.state in ("sleeping", "running")


def test_processes_of_crckpt_are_listed_by_the_module_that_they_run(tmp_path: Path) -> None:
    package = tmp_path / "crckpt" / "tracking"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "server.py").write_text("print('ready', flush=True); input()")
    # The path of a CRIU among the words does not make it one.
    with running(sys.executable, "-m", "crckpt.tracking.server", "/usr/sbin/criu", cwd=tmp_path) as process:
        (found,) = (found for found in find_criu_processes() if found.pid == process.pid)
        assert (found.program, found.module) == ("crckpt", "crckpt.tracking.server")


def test_processes_of_others_that_call_themselves_crckpt_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can start any number of such processes."""
    monkeypatch.setattr(usage, "_MOST_FOREIGN", 2)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        directory.chmod(0o755)
        program = directory / "crckpt"
        shutil.copy("/usr/bin/sleep", program)
        own = stack.enter_context(running(str(program), "60", ready=""))
        theirs = {stack.enter_context(running(str(program), "60", ready="", user=1234)).pid for _ in range(4)}
        found = {each.pid: each for each in find_criu_processes()}
        assert not found[own.pid].is_foreign
        assert len(theirs & found.keys()) == 2
        assert all(found[pid].is_foreign for pid in theirs & found.keys())
