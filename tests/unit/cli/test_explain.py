"""`crckpt explain` on a file, on stdin, and on something that is not a log."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from crckpt.host.disk.log_excerpt import MOST

KNOWN_LOG = (
    b"(00.01) Error (criu/new.c:1): first\n(00.02) Error (criu/sk-netlink.c:77): netlink: The socket has data to read\n"
)
UNREMARKABLE_LINES = (b"(00.01) nothing of note" + b" in a long line" * 4 + b"\n") * (1 << 18)
assert len(UNREMARKABLE_LINES) > MOST


def explained(*words: str, stdin: bytes = b"", status: int = 0) -> str:
    command = [sys.executable, "-m", "crckpt", "explain", *words]
    result = subprocess.run(command, input=stdin, capture_output=True, check=False)
    assert result.returncode == status, result.stderr
    return (result.stdout + result.stderr).decode()


def test_explain_gives_the_same_output_for_a_file_and_for_stdin(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_bytes(KNOWN_LOG)
    output = explained(str(log))
    assert output == explained("-", stdin=KNOWN_LOG)
    assert output.splitlines() == [
        "a netlink socket holds messages that the program has not read",
        "  hint: try again in a moment",
        "  see: reference/causes.html#netlink-data in the documents",
    ]
    assert "  | (00.01) Error (criu/new.c:1): first\n" in explained(str(log), "-v")


def test_explain_prints_the_lines_of_criu_to_which_a_remedy_refers() -> None:
    """The user cannot look up these lines elsewhere: crckpt keeps no log of a failed dump."""
    output = explained("-", stdin=b"(00.01) Error (criu/new.c:1): Can't open /srv/x: No such file or directory\n")
    assert "find it in CRIU's own lines" in output
    assert "  | (00.01) Error (criu/new.c:1): Can't open /srv/x: No such file or directory\n" in output


def test_json_output_of_explain_names_the_cause_and_quotes_lines() -> None:
    result = json.loads(explained("-", "--json", stdin=KNOWN_LOG))["result"]
    assert set(result) == {"known", "cause", "what", "remedy", "sure", "place", "line", "lines"}
    assert (result["known"], result["cause"]) == (True, "netlink-data")
    assert len(result["lines"]) == 2


def test_explain_has_its_own_exit_code_for_an_unknown_failure() -> None:
    """The command still prints what it found."""
    unknown = b"(00.01) Error (criu/new.c:1): something new\n"
    output = explained("-", stdin=unknown, status=4)
    assert output.splitlines() == [
        "crckpt does not know this failure; make an archive to report it: crckpt report LOG. CRIU's messages:",
        "  | (00.01) Error (criu/new.c:1): something new",
    ]
    document = json.loads(explained("-", "--json", stdin=unknown, status=4))
    assert (document["status"], document["error"]["code"], document["result"]["known"]) == ("error", 4, False)


def test_explain_refuses_input_that_is_not_a_log() -> None:
    assert "stdin is empty\n" in explained("-", status=2)
    assert "stdin is not a CRIU log\n" in explained("-", stdin=os.urandom(100_000), status=2)
    assert explained("-", stdin=b"(00.000123) Dumping finished successfully\n") == "the log shows no error\n"
    assert "\x1b" not in explained("-", stdin=b"Error (a\x1b[31m\xff\n", status=4)


def test_explain_refuses_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    assert "cannot read the log" in explained(str(tmp_path / "none"), status=2)
    assert f"{tmp_path} is a directory\n" in explained(str(tmp_path), status=2)
    assert "/dev/zero is a device, not a file\n" in explained("/dev/zero", status=2)
    os.mkfifo(tmp_path / "pipe")
    assert "pipe is a named pipe, not a file\n" in explained(str(tmp_path / "pipe"), status=2)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert "socket is a socket, not a file\n" in explained(str(tmp_path / "socket"), status=2)


def test_explain_treats_a_closed_stdin_as_empty() -> None:
    command = ["sh", "-c", '"$0" -m crckpt explain - <&-', sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("crckpt: stdin is empty\n")


def test_explain_refuses_an_endless_stream() -> None:
    with Path("/dev/zero").open("rb") as zeros:
        command = [sys.executable, "-m", "crckpt", "explain", "-"]
        result = subprocess.run(command, stdin=zeros, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "stdin is longer than 256 MiB" in result.stderr


def test_explain_reads_only_start_and_end_of_a_terabyte(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_bytes(b"(00.01) Error (criu/new.c:1): first\n" + UNREMARKABLE_LINES)
    os.truncate(log, 1 << 40)
    with log.open("ab") as file:
        file.write(UNREMARKABLE_LINES + KNOWN_LOG)
    output = explained(str(log), "-v")
    assert output.startswith("a netlink socket holds messages that the program has not read\n")
    with log.open("rb") as file:
        assert (
            subprocess.run(
                [sys.executable, "-m", "crckpt", "explain", "-v", "-"], stdin=file, capture_output=True, check=True
            ).stdout.decode()
            == output
        )


def test_explain_reads_only_start_and_end_of_a_long_stream() -> None:
    output = explained("-", "-v", stdin=b"(00.01) Error (criu/new.c:2): begin\n" + UNREMARKABLE_LINES + KNOWN_LOG)
    assert output.splitlines()[0] == "a netlink socket holds messages that the program has not read"
    assert "begin" in output


def test_explain_marks_a_likely_cause_and_shows_the_lines() -> None:
    output = explained("-", stdin=b"(00.01) Error (criu/netlink.c:1): Error -17 reported by netlink: exists\n")
    assert output.startswith("most likely: ")
    assert "  | (00.01) Error (criu/netlink.c:1)" in output
