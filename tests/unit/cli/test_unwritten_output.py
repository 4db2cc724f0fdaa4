"""A command whose output cannot be written: the reader has gone, the disk is full, the stream is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crckpt.store import Repository


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty store."""
    Repository.open(tmp_path / "store", create=True)
    return tmp_path / "store"


def run_into(output: int, *words: str | Path) -> tuple[int, str]:
    """Exit code and stderr of a command that writes to `output`."""
    result = subprocess.run(
        [sys.executable, "-m", "crckpt", *words], stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )
    return result.returncode, result.stderr


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("--help",), ("--version",), ("gc",)])
def test_closed_pipe_does_not_fail_the_command(store: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        message = run_into(output.fileno(), *words, *(() if words[0].startswith("--") else ("--store", store)))
    assert message == (0, "")


@pytest.mark.parametrize("words", [("verify", "--all"), ("verify", "--all", "--json")])
def test_exit_code_is_kept_when_the_reader_has_gone(store: Path, words: tuple[str, ...]) -> None:
    """`crckpt verify --all | grep -q damaged` closes the pipe early."""
    identity = "0" * 64
    (store / "checkpoints" / identity).mkdir(0o700)
    (store / "checkpoints" / identity / "manifest.json").write_text("damaged")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        assert run_into(output.fileno(), *words, "--store", store) == (13, "")


def test_unencodable_characters_are_written_as_numbers(tmp_path: Path) -> None:
    """A Latin-1 terminal lacks the replacement character that crckpt puts into a name."""
    log = tmp_path / "log"
    log.write_bytes(b"(00.1) Error (criu/x.c:1): bad \001 name\n")
    words = [sys.executable, "-m", "crckpt", "explain", str(log)]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    result = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert (result.returncode, result.stderr) == (4, "")
    assert "bad \\ufffd name" in result.stdout


def test_output_that_cannot_be_written_to_a_full_disk_fails_the_command(store: Path) -> None:
    with Path("/dev/full").open("wb") as output:
        code, message = run_into(output.fileno(), "list", "--json", "--store", store)
        done = "crckpt: crckpt list succeeded, but its output could not be written: No space left on device"
        assert (code, message.splitlines()[0]) == (1, done)
        code, message = run_into(output.fileno(), "list", "--json", "--store", store / "none")
        assert code == 10
        assert f"there is no store at {store / 'none'}" in message


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_closed_streams_do_not_change_the_exit_code(store: Path, closed: str) -> None:
    for words, code in ((("gc", "--json"), 0), (("show", "none"), 12), (("nonsense",), 2)):
        argv = [sys.executable, "-m", "crckpt", *words, *(() if code == 2 else ("--store", str(store)))]
        result = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *argv], check=False)
        assert result.returncode == code, words


def test_files_of_the_store_never_get_the_number_of_a_closed_standard_stream(tmp_path: Path) -> None:
    """Messages to descriptor 2 would be written into the file."""
    code = "import os, crckpt.__main__ as started; started._open_standard_streams(); "
    code += f"os._exit(os.open({str(tmp_path)!r}, os.O_RDONLY))"
    result = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code], check=False)
    assert result.returncode > 2
