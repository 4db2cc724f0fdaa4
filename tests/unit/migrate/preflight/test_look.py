"""Files by paths from elsewhere: devices and FIFOs are not opened, automounts not mounted, silence is limited."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from target_processes import PROGRAMS

from crckpt.migrate.preflight.answers import look_for_files
from crckpt.migrate.preflight.questions import AskedFile

pytestmark = pytest.mark.usefixtures("is_root")

_PROGRAM = """
import ctypes, os, sys
from pathlib import Path
sys.path.insert(0, {support!r})
from crckpt.migrate.preflight.answers import look_for_files
from crckpt.migrate.preflight.questions import AskedFile

libc = ctypes.CDLL(None, use_errno=True)
def mount(kind, where, data):
    if libc.mount(kind, os.fsencode(where), kind, 0, data):
        print("cannot", os.strerror(ctypes.get_errno()))
        sys.exit()

def look(*paths):
    asked = [AskedFile(number, os.fsencode(path), 0o100644, 16384) for number, path in enumerate(paths, 1)]
    for number, found in look_for_files(asked, {within}).items():
        print(number, found.problem or ("missing" if found.is_missing else "there"), flush=True)
"""


def _ask(path: Path, **more: object) -> AskedFile:
    return replace(AskedFile(1, os.fsencode(path), 0o100644), **more)


def _run(statements: str, within: float = 10.0) -> list[str]:
    """Run statements in mounts of their own; skip the test if something cannot be mounted."""
    program = _PROGRAM.format(support=str(PROGRAMS), within=within) + statements
    words = ("unshare", "--mount", "--propagation", "private", sys.executable, "-c", program)
    result = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    lines = result.stdout.splitlines()
    if lines and lines[0].startswith("cannot"):
        pytest.skip(f"this kernel mounts no such file system: {lines[0]}")
    return lines


def test_examining_a_fifo_does_not_open_it(tmp_path: Path) -> None:
    """Opening a FIFO would block, and its content is not read."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    found = look_for_files([_ask(path, size=0, digest="00")])[1]
    assert found.state is not None
    assert found.digest == ""


def test_examining_a_device_does_not_open_it(tmp_path: Path) -> None:
    """Opening a tape would rewind it. This device has no driver: opening it fails, stat does not."""
    path = tmp_path / "device"
    try:
        os.mknod(path, 0o20600, os.makedev(4095, 1))
    except PermissionError:
        pytest.skip("no devices can be made here")
    found = look_for_files([_ask(path, digest="00", build_id="00")])[1]
    assert (found.problem, found.digest) == ("", "")
    assert found.state is not None


def test_examining_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to(path)
    found = look_for_files([_ask(path)])[1]
    assert found.problem == "refused"
    assert "symbolic links" in found.why


def test_symbolic_link_opened_with_o_nofollow_is_examined_instead_of_its_target(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to("/nowhere")
    assert look_for_files([_ask(path)])[1].is_missing
    assert look_for_files([_ask(path, flags=os.O_NOFOLLOW)])[1].state is not None


def test_examining_an_automount_does_not_mount_it(tmp_path: Path) -> None:
    """Otherwise the test would wait forever, because no daemon answers the request of the kernel."""
    assert _run(
        f"""
place = {str(tmp_path)!r} + "/auto"
os.mkdir(place)
reading, writing = os.pipe()
mount(b"autofs", place, f"fd={{writing}},pgrp={{os.getpgrp() + 1}},minproto=5,maxproto=5,direct".encode())
look(place, place + "/home/file", {str(tmp_path)!r})
"""
    ) == ["1 unmounted", "2 unmounted", "3 there"]


def test_examining_a_file_on_a_silent_file_system_ends(tmp_path: Path) -> None:
    """The file system is not disconnected, and the files after it are unknown."""
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("/dev/fuse cannot be used here")
    silent, server = tmp_path / "silent", tmp_path / "server"
    (tmp_path / "mount").mkdir()
    try:
        lines = _run(
            f"""
import subprocess
words = ["setsid", "--fork", sys.executable, {str(PROGRAMS / "silent_fuse.py")!r}, {str(tmp_path / "mount")!r}]
with subprocess.Popen([*words, {str(silent)!r}, {str(server)!r}], stdout=subprocess.PIPE, text=True) as starter:
    line = starter.stdout.readline()
if line != "mounted\\n":
    print("cannot", line)
    sys.exit()
file = {str(tmp_path / "mount/file")!r}
look(file)
Path({str(silent)!r}).write_text("silent")
look(file, "/")
os.kill(int(Path({str(server)!r}).read_text()), 9)
""",
            within=3,
        )
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(server.read_text()), signal.SIGKILL)
    assert lines == ["1 there", "1 silent", "2 unasked"]
