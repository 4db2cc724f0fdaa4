"""What CRIU is told through the preload library; and what it asks that the library does not know is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from entering import PROGRAMS

from crckpt.tracking import preload

BUILD = Path(__file__).parents[3] / "scripts/build-preload"
WPALLOWED, WRITTEN, PRESENT, SOFT_DIRTY = 1, 2, 8, 128
DIRTY, CLEAN = PRESENT | SOFT_DIRTY, PRESENT

_MUSL = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
int main(void)
{
    int number = open("criu.kdat", O_RDONLY | O_CREAT, 0600);
    printf("%d %d\\n", number, errno == EEXIST);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled from what is there now."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    built = tmp_path_factory.mktemp("preload") / "lib.so"
    subprocess.run([str(BUILD), str(built)], check=True)
    return built


@pytest.fixture(scope="module")
def asked(library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What came of each question, and what was said on stderr."""
    work = tmp_path_factory.mktemp("work")
    (work / "criu.kdat").write_bytes(b"remembered")
    words = ["/usr/bin/python3", "-S", str(PROGRAMS / "asks_as_criu.py"), str(work)]
    done = subprocess.run(words, env={"LD_PRELOAD": str(library)}, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return told, done.stderr


def test_what_is_pretended_is_never_remembered(asked: tuple[dict[str, Any], str]) -> None:
    told, _ = asked
    opens = {name: found for name, found in told.items() if name.startswith("kdat ")}
    assert opens.pop("kdat create") == "EEXIST"
    assert len(opens) == 8
    assert set(opens.values()) == {"ENOENT"}, opens


def test_the_self_test_passes_by_every_way_to_read(asked: tuple[dict[str, Any], str]) -> None:
    told, _ = asked
    assert told["reset"] == 2
    dirty = {name: found for name, found in told.items() if name.startswith("dirty ")}
    assert len(dirty) == 6
    assert all(dirty.values()), dirty


def test_soft_dirty_is_what_was_written_or_is_not_registered(asked: tuple[dict[str, Any], str]) -> None:
    told, _ = asked
    assert told["unregistered"] == [DIRTY] * 6
    assert told["registered"] == [DIRTY] * 6
    assert told["after reset"] == [CLEAN] * 6, "and pages 6 and 7, which hold nothing, are still not there"
    assert told["one written"] == [CLEAN] * 3 + [DIRTY] + [CLEAN] * 2
    assert told["without soft-dirty"] == [PRESENT] * 6


def test_what_it_does_not_know_is_refused_in_words(asked: tuple[dict[str, Any], str]) -> None:
    told, said = asked
    for what in ("flags", "size", "chosen by soft-dirty", "asked for written", "reset 1", "reset 44", "reset 5"):
        assert told[what] in ("ENOTSUP", "EOPNOTSUPP"), what
    assert "another number than 4 for clear_refs" in said
    assert "PAGEMAP_SCAN with WPALLOWED or WRITTEN" in said


def test_nothing_else_is_touched(asked: tuple[dict[str, Any], str]) -> None:
    told, _ = asked
    assert told["another file of that number"]
    assert told["mode"] == 0o640 & ~_umask()
    assert told["at once"] == 64
    assert told["the next"] in ("ENOTSUP", "EOPNOTSUPP"), "one that could not be looked after is not opened"


def test_it_takes_no_library(library: Path) -> None:
    needed = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" not in needed


def test_a_program_linked_with_musl_takes_it(library: Path, tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc (musl-tools) is not installed")
    (tmp_path / "program.c").write_text(_MUSL)
    subprocess.run(["musl-gcc", "-o", str(tmp_path / "program"), str(tmp_path / "program.c")], check=True)
    environment = {"LD_PRELOAD": str(library)}
    done = subprocess.run([str(tmp_path / "program")], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "-1 1\n"


def test_how_each_kind_of_criu_gets_it(tmp_path: Path) -> None:
    script, program = tmp_path / "script", tmp_path / "program"
    script.write_text("#!/bin/sh\n")
    program.write_bytes(b"\x7fELF")
    assert preload.environment(script) == {"CRCKPT_CRIU_PRELOAD": str(preload.LIBRARY)}
    assert preload.environment(program) == {"LD_PRELOAD": str(preload.LIBRARY)}


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask
