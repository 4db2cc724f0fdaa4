"""A trial dump and restore tell whether a CRIU works here, and why not."""

from __future__ import annotations

import sys
from pathlib import Path

from criu_scripts import script
from own_process import children, descriptors

from crckpt.criu.trial import trial

VERSION = '[ "$1" = --version ] && { echo "Version: 9.9"; exit 0; }\n'


def test_failed_check_is_explained(tmp_path: Path) -> None:
    broken = script(
        tmp_path / "criu", f"{VERSION}echo 'Error (criu/vdso.c:1): vdso: Unexpected rt vDSO area bounds'; exit 1"
    )
    assert trial(broken) == "criu check fails: this CRIU is too old for the running kernel"
    silent = script(tmp_path / "criu", f"{VERSION}exit 1")
    assert trial(silent) == "criu check fails"
    other = script(tmp_path / "criu", f"{VERSION}echo Looks bad. >&2; exit 1")
    assert trial(other) == "criu check fails: Looks bad."


def test_failed_trial_dump_is_explained(tmp_path: Path) -> None:
    before = children(), descriptors()
    failing = script(
        tmp_path / "criu",
        f'{VERSION}[ "$1" = check ] && exit 0\n'
        'echo "Error (criu/sk-inet.c:137): inet: Unsupported proto 6 for socket 1"; exit 1',
    )
    why = trial(failing)
    assert why is not None
    assert why.startswith("the trial dump fails: a socket uses IP protocol 6")
    assert (children(), descriptors()) == before


def test_killed_trial_program_and_failed_restore_are_explained(tmp_path: Path) -> None:
    before = children(), descriptors()
    ending = script(tmp_path / "criu", f'{VERSION}case "$1" in dump) kill -9 "$3";; restore) exit 1;; esac')
    assert trial(ending) == "the trial restore fails"
    lying = script(tmp_path / "criu", f'{VERSION}case "$1" in dump) kill -9 "$3";; esac')
    assert trial(lying) == "the trial restore fails"
    assert (children(), descriptors()) == before


def test_trial_program_that_does_not_start_is_reported(tmp_path: Path) -> None:
    python = str(script(tmp_path / "python", "echo no such module; exit 1"))
    assert trial(script(tmp_path / "criu", "exit 0"), python) == "the trial's program does not start: no such module"


def test_others_cannot_connect_to_the_trial(tmp_path: Path) -> None:
    """CRIU would refuse the dump then, and crckpt say that no CRIU works here."""
    connect = f"""
import os, socket
number = os.open({str(tmp_path / "said")!r}, os.O_WRONLY | os.O_CREAT)
descriptors = f"/proc/{{os.environ['TREE']}}/fd"
inodes = {{os.readlink(f"{{descriptors}}/{{each}}") for each in os.listdir(descriptors)}}
listening = [line.split() for line in open("/proc/net/tcp") if line.split()[3] == "0A"]
[port] = [int(each[1].partition(":")[2], 16) for each in listening if f"socket:[{{each[9]}}]" in inodes]
try:
    socket.create_connection(("127.0.0.1", port), 1)
    os.write(number, b"connected")
except TimeoutError:
    os.write(number, b"not connected")
"""
    (tmp_path / "connect.py").write_text(connect)
    criu = script(
        tmp_path / "criu",
        f'{VERSION}case "$1" in check) ;; dump) TREE=$3 {sys.executable} {tmp_path}/connect.py; exit 1 ;; esac',
    )
    assert trial(criu) is not None
    assert (tmp_path / "said").read_text() == "not connected"
