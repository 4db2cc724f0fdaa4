"""Test whether a CRIU works on this kernel: dump and restore a small process. Its version proves nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from crckpt.criu.command import Paths, dump_command, restore_command
from crckpt.criu.engine import CriuResult, run_criu
from crckpt.criu.explain import explain
from crckpt.host import proc
from crckpt.host.process import run
from crckpt.host.process.signals import send_signal_if
from crckpt.model import DumpOptions

# Some builds dump a plain process but no TCP socket (4.1 on kernel 6.18): the process has one of each common kind.
# Its socket drops all packets, by a filter (BPF_RET, struct sock_fprog): CRIU dumps no socket to which somebody has
# just connected.
_PROGRAM = """
import array, os, signal, socket, struct, threading
signal.alarm(60)  # should crckpt be killed meanwhile, it ends by itself
listener = socket.socket()
filter = array.array("B", struct.pack("=HBBI", 6, 0, 0, 0))
listener.setsockopt(socket.SOL_SOCKET, 26, struct.pack("@HP", 1, filter.buffer_info()[0]))  # SO_ATTACH_FILTER
listener.bind(("127.0.0.1", 0))
listener.listen()
pipe, pair = os.pipe(), socket.socketpair()
threading.Thread(target=threading.Event().wait, daemon=True).start()
open("ready", "w").close()
threading.Event().wait()
"""

_LOOK_S = 0.005
_ENDED_WITHIN_S = 10.0


def trial(criu: Path, python: str = sys.executable) -> str | None:
    """Dump and restore a small process with a thread, a pipe, a socket pair and a listening socket.

    `python` runs the process. None if that works, else why it does not. Nothing is left behind.
    """
    checked = run.run([criu, "check", "--no-default-config"])
    if not checked.ok:
        return _reason(checked.output, "criu check fails")
    with tempfile.TemporaryDirectory(prefix="crckpt-trial-") as name:
        return _dump_and_restore(criu, Path(name), python)


def locks_by_nftables(criu: Path) -> bool:
    """Return whether CRIU can lock a tree's network by nftables on this host."""
    return run.run([criu, "check", "--no-default-config", "--feature", "network_lock_nftables"]).ok


def digest_of(criu: Path) -> str:
    """The SHA-256 of CRIU's program."""
    with criu.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _dump_and_restore(criu: Path, work: Path, python: str) -> str | None:
    images = work / "images"
    images.mkdir(mode=0o700)
    paths = Paths(images, work)
    program = [python, "-S", "-c", f"import os; os.chdir({str(work)!r})\n{_PROGRAM}"]
    child = run.start(program, output=work / "program.out")
    try:
        if not _is_ready(work / "ready", child):
            return f"the trial's program does not start: {(work / 'program.out').read_text(errors='replace').strip()}"
        dump = run_criu(dump_command(criu, child.pid, paths, DumpOptions(), leave_running=False), work / "dump.log")
        if not dump.ok:
            return _reason(dump.log, "the trial dump fails")
        # The restored process needs the PID of the dumped one.
        if not child.ends_within(_ENDED_WITHIN_S):
            return "the trial dump did not end the program"
        child.wait()
        restore = run_criu(
            restore_command(criu, paths, DumpOptions(), sibling=True), work / "restore.log", limited=True
        )
        return None if _is_restored(restore, child.pid) else _reason(restore.log, "the trial restore fails")
    finally:
        _end(child, work)


def _is_restored(result: CriuResult, pid: int) -> bool:
    process = proc.read_process(pid)
    return result.ok and process is not None and process.state != "zombie"


def _is_ready(ready: Path, child: run.Child) -> bool:
    while not ready.exists():
        if child.ends_within(_LOOK_S):
            return False
    return True


def _end(child: run.Child, work: Path) -> None:
    """End and reap the child, or the process that CRIU restored under the same PID."""
    child.kill()
    child.wait()
    # The restored one is not our child where a script started CRIU.
    place = str(work.resolve())
    send_signal_if(child.pid, signal.SIGKILL, lambda: proc.working_directory(child.pid) == place)
    with suppress(ChildProcessError):
        os.waitpid(child.pid, 0)


def _reason(log: str, what: str) -> str:
    explanation = explain(log)
    if explanation.finding:
        return f"{what}: {explanation.finding.what}"
    # Of an unknown failure, its first complaint; of no complaint at all, the last line.
    lines = explanation.lines or tuple(log.strip().splitlines()[-1:])
    return f"{what}: {lines[0].strip()}" if lines else what
