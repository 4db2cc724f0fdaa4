"""A trial dump and restore show whether a CRIU works here, and why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from criu_scripts import script
from own_process import children, descriptors

from crckpt.criu.find import explain_rejection
from crckpt.criu.install.machine import RejectedError
from crckpt.criu.install.trial import trial

VERSION = '[ "$1" = --version ] && { echo "Version: 9.9"; exit 0; }\n'


def why_not(criu: Path, python: str = sys.executable) -> str:
    with pytest.raises(RejectedError) as caught:
        trial(criu, python)
    return explain_rejection(caught.value)


def test_failed_trial_dump_is_explained(tmp_path: Path) -> None:
    before = children(), descriptors()
    broken = script(
        tmp_path / "criu", f"{VERSION}echo 'Error (criu/vdso.c:1): vdso: Unexpected rt vDSO area bounds'; exit 1"
    )
    assert why_not(broken) == "the trial dump fails: this CRIU is too old for the running kernel"
    silent = script(tmp_path / "criu", f"{VERSION}exit 1")
    assert why_not(silent) == "the trial dump fails"
    other = script(tmp_path / "criu", f"{VERSION}echo Looks bad. >&2; exit 1")
    assert why_not(other) == "the trial dump fails: Looks bad."
    failing = script(
        tmp_path / "criu",
        f'{VERSION}echo "Error (criu/sk-inet.c:137): inet: Unsupported proto 6 for socket 1"; exit 1',
    )
    assert why_not(failing).startswith("the trial dump fails: a socket uses IP protocol 6")
    assert (children(), descriptors()) == before


def test_killed_trial_program_and_failed_restore_are_explained(tmp_path: Path) -> None:
    before = children(), descriptors()
    ending = script(tmp_path / "criu", f'{VERSION}case "$1" in dump) kill -9 "$3";; restore) exit 1;; esac')
    assert why_not(ending) == "the trial restore fails"
    lying = script(tmp_path / "criu", f'{VERSION}case "$1" in dump) kill -9 "$3";; esac')
    assert why_not(lying) == "CRIU 9.9: restore: the restored process does not answer"
    assert (children(), descriptors()) == before


def test_trial_program_that_does_not_start_is_reported(tmp_path: Path) -> None:
    python = str(script(tmp_path / "python", "echo no such module; exit 1"))
    assert why_not(script(tmp_path / "criu", "exit 0"), python) == "the trial's program does not start: no such module"


def test_others_cannot_connect_to_the_trial(tmp_path: Path) -> None:
    """With an outside connection CRIU would refuse the dump, and crckpt would say that no CRIU works here."""
    connect = f"""
import os, socket
number = os.open({str(tmp_path / "report")!r}, os.O_WRONLY | os.O_CREAT)
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
        f"{VERSION}TREE=$3 {sys.executable} {tmp_path}/connect.py; exit 1",
    )
    assert why_not(criu)
    assert (tmp_path / "report").read_text() == "not connected"
