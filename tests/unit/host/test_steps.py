"""Nothing in the store changes a file without a named step before it, at which a test can end the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from changes import find_unannounced, step_names

import crckpt
from crckpt.host import steps

CODE = Path(crckpt.__file__).parent
STORE = sorted((CODE / "store").rglob("*.py"))
PRIMITIVES = CODE / "host/disk/files.py"


@pytest.mark.parametrize("path", [*STORE, PRIMITIVES], ids=lambda path: str(path.relative_to(CODE)))
def test_every_change_of_a_file_is_announced_as_a_step(path: Path) -> None:
    assert set(find_unannounced(path.read_text())) == set()


@pytest.mark.parametrize(
    "code",
    [
        "os.write(fd, b'')", "os.fsync(fd)", "os.rename(a, b)", "os.replace(a, b)", "a.replace(b)", "a.unlink()",
        "path.mkdir()", "shutil.rmtree(path)", "os.truncate(a, 1)", "os.ftruncate(a, 1)", "open(a, 'w')",
        "path.open('ab')", "path.open(mode='r+b')", "os.open(a, os.O_RDWR | os.O_CREAT)", "path.write_bytes(b'')",
        "with open(a, 'wb') as file:\n    pass", "from os import fsync", "from crckpt.host.disk import files",
        "from crckpt.host.disk.files import remove as gone", "import os as o",
        "step('a.b')\nx = 1\nos.fsync(fd)",
        "step('a.b')\nwhile left:\n    os.write(fd, left)",
        "step('a.b')\nif x:\n    y()\n    os.fsync(fd)",
    ],
)  # fmt: skip
def test_change_of_a_file_without_a_step_is_found(code: str) -> None:
    assert len(find_unannounced(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "step('a.b')\nos.fsync(fd)",
        "while left:\n    step('a.b')\n    left = left[os.write(fd, left):]",
        "try:\n    step('a.b')\n    os.fsync(fd)\nfinally:\n    os.close(fd)",
        "text.replace('a', 'b')", "replace(value, a=1)", "path.open('rb')", "os.open(a, os.O_RDONLY)", "write(fd, b'')",
    ],
)  # fmt: skip
def test_announced_and_harmless_calls_are_accepted(code: str) -> None:
    assert find_unannounced(code) == ()


def test_names_of_steps_are_found_through_functions() -> None:
    primitives = """
def make(path, what):
    step(f"{what}.mkdir", path)
    path.mkdir()
    sync(path, what)
def sync(path, what):
    step(f"{what}.sync", path)
    os.fsync(path)
"""
    assert step_names(primitives, ["make(path, 'x')\ndef own(what): sync(a, what)\nown('y')"]) == {
        "x.mkdir",
        "x.sync",
        "y.sync",
    }
    with pytest.raises(AssertionError, match="no plain name"):
        step_names(primitives, ["make(path, name)"])


def test_process_is_killed_at_the_step_that_the_environment_names(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from crckpt.host.disk import files\n"
    program += "for name in 'abc': files.write_durably(Path(sys.argv[1], name), b'x', 'thing')"
    for at, left in (("thing.create", 0), ("thing.create:2", 1), ("thing.rename:3", 3), ("other.create", 3)):
        place = tmp_path / at
        place.mkdir()
        environment = {**os.environ, "CRCKPT_KILL_AT": at}
        ended = subprocess.run([sys.executable, "-c", program, str(place)], env=environment, check=False)
        assert ended.returncode == (0 if at.startswith("other") else -signal.SIGKILL)
        assert len(list(place.iterdir())) == left


def test_watcher_sees_steps_and_operands(tmp_path: Path) -> None:
    seen: list[tuple[str, tuple[object, ...]]] = []
    steps.watch(lambda name, operands: seen.append((name, operands)))
    try:
        steps.step("a.b", tmp_path, 3)
    finally:
        steps.watch(None)
    steps.step("a.c")
    assert seen == [("a.b", (tmp_path, 3))]
