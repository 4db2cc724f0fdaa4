"""`crckpt explain` on a file, on stdin, and on what is no log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

KNOWN = (
    b"(00.01) Error (criu/new.c:1): first\n(00.02) Error (criu/sk-netlink.c:77): netlink: The socket has data to read\n"
)


def explained(*words: str, stdin: bytes = b"", status: int = 0) -> str:
    command = [sys.executable, "-m", "crckpt", "explain", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    assert done.returncode == status, done.stderr
    return (done.stdout + done.stderr).decode()


def test_a_file_and_stdin_are_told_alike(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_bytes(KNOWN)
    said = explained(str(log))
    assert said == explained("-", stdin=KNOWN)
    assert said.splitlines() == [
        "a netlink socket holds messages that the program has not read",
        "  hint: try again in a moment",
    ]
    assert "  | (00.01) Error (criu/new.c:1): first\n" in explained(str(log), "-v")


def test_as_json() -> None:
    result = json.loads(explained("-", "--json", stdin=KNOWN))["result"]
    assert set(result) == {"known", "cause", "what", "remedy", "place", "line", "lines"}
    assert (result["known"], result["cause"]) == (True, "netlink-data")
    assert len(result["lines"]) == 2


def test_an_unknown_failure_is_said_to_be_one() -> None:
    said = explained("-", stdin=b"(00.01) Error (criu/new.c:1): something new\n")
    assert said.splitlines() == [
        "crckpt does not know this failure (crckpt report LOG makes an archive to report it with); CRIU said:",
        "  | (00.01) Error (criu/new.c:1): something new",
    ]


def test_no_log_at_all() -> None:
    assert "what came on stdin is empty\n" in explained("-", status=2)
    assert "what came on stdin is no log of CRIU\n" in explained("-", stdin=os.urandom(100_000), status=2)
    assert explained("-", stdin=b"(00.000123) Dumping finished successfully\n") == "the log shows no error\n"
    assert "\x1b" not in explained("-", stdin=b"Error (a\x1b[31m\xff\n")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot read the log" in explained(str(tmp_path / "none"), status=2)
    assert "cannot read the log" in explained(str(tmp_path), status=2)


def test_a_closed_stdin_is_an_empty_one() -> None:
    command = ["sh", "-c", '"$0" -m crckpt explain - <&-', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("crckpt: what came on stdin is empty\n")


def test_what_never_ends_is_no_log() -> None:
    assert "longer than 256 MiB" in explained("/dev/zero", status=2)
