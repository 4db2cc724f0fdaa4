"""What a command does when what it says cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crckpt.store import Repository


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty one."""
    Repository.open(tmp_path / "store", create=True)
    return tmp_path / "store"


def said_to(output: int, *words: str | Path) -> tuple[int, str]:
    """Exit code and stderr of a command that writes to `output`."""
    done = subprocess.run(
        [sys.executable, "-m", "crckpt", *words], stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("--help",), ("--version",), ("gc",)])
def test_that_nobody_reads_it_is_no_failure(store: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        said = said_to(output.fileno(), *words, *(() if words[0].startswith("--") else ("--store", store)))
    assert said == (0, "")


@pytest.mark.parametrize("words", [("verify", "--all"), ("verify", "--all", "--json")])
def test_a_verdict_holds_though_nobody_reads_why(store: Path, words: tuple[str, ...]) -> None:
    """As in `crckpt verify --all | grep -q damaged`."""
    identity = "0" * 64
    (store / "checkpoints" / identity).mkdir(0o700)
    (store / "checkpoints" / identity / "manifest.json").write_text("damaged")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        assert said_to(output.fileno(), *words, "--store", store) == (13, "")


def test_what_an_encoding_lacks_is_written_as_its_number(tmp_path: Path) -> None:
    """A terminal of Latin-1, and a name of which crckpt itself has made a sign that this does not have."""
    log = tmp_path / "log"
    log.write_bytes(b"(00.1) Error (criu/x.c:1): bad \001 name\n")
    words = [sys.executable, "-m", "crckpt", "explain", str(log)]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bad \\ufffd name" in done.stdout


def test_that_there_is_no_room_for_it_is_one(store: Path) -> None:
    with Path("/dev/full").open("wb") as output:
        code, said = said_to(output.fileno(), "list", "--json", "--store", store)
        done = "crckpt: crckpt list succeeded, but its output could not be written: No space left on device"
        assert (code, said.splitlines()[0]) == (1, done)
        code, said = said_to(output.fileno(), "list", "--json", "--store", store / "none")
        assert code == 10
        assert f"there is no store at {store / 'none'}" in said


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_without_anywhere_to_say_it_the_exit_code_is_the_same(store: Path, closed: str) -> None:
    for words, code in ((("gc", "--json"), 0), (("show", "none"), 12), (("nonsense",), 2)):
        argv = [sys.executable, "-m", "crckpt", *words, *(() if code == 2 else ("--store", str(store)))]
        done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *argv], check=False)
        assert done.returncode == code, words


def test_a_store_gets_no_number_of_a_standard_stream(tmp_path: Path) -> None:
    """What is written to descriptor 2 would be written into it."""
    code = "import os, crckpt.__main__ as started; started._open_standard_streams(); "
    code += f"os._exit(os.open({str(tmp_path)!r}, os.O_RDONLY))"
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code], check=False)
    assert done.returncode > 2
