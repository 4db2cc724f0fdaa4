"""Answers of the preload library to CRIU; requests that the library does not know are refused."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import PROJECT
from target_processes import ANSWERS_OF_ANOTHER_LIBRARY, NO_WRITE_PROTECTION, PROGRAMS, preload_library

from crckpt.criu.hold import gate
from crckpt.tracking.preload import library as preload
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.uffd_wp import UffdWp

BUILD = PROJECT / "scripts/build-preload"
WPALLOWED, WRITTEN, PRESENT, SOFT_DIRTY = 1, 2, 8, 128
PAGE = 4096
DIRTY, CLEAN = PRESENT | SOFT_DIRTY, PRESENT
TRACKERS = (
    pytest.param(UffdWp.name, marks=pytest.mark.skipif(bool(NO_WRITE_PROTECTION), reason=NO_WRITE_PROTECTION)),
    SoftDirty.name,
)
SOON = 20.0
RESET_REFUSAL = "who started this CRIU does not let it reset"
OWNER = """
import select, sys
from pathlib import Path
from crckpt.criu.hold import gate
with gate(Path(sys.argv[1])) as hold:
    print("held", flush=True)
    select.select([hold.reached], [], [])
    print("reached", flush=True)
    sys.stdin.read()
"""

_MUSL = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    int number = open("criu.kdat", O_RDONLY | O_CREAT, 0600);
    printf("%d %d ", number, errno == EEXIST);
    setenv("CRCKPT_TRACKER", "another", 1);
    number = open("/proc/self/clear_refs", O_RDWR);
    printf("%d %d\\n", number, errno == ENOTSUP);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled from what is there now."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    built = tmp_path_factory.mktemp("preload") / "lib.so"
    subprocess.run([str(BUILD), str(built), str(built.with_name("hold")), str(built.with_name("restore"))], check=True)
    return built


@pytest.fixture(scope="module")
def library_answers(library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What came of each question, and what was said on stderr."""
    if NO_WRITE_PROTECTION:
        pytest.skip(NO_WRITE_PROTECTION)
    work = tmp_path_factory.mktemp("work")
    (work / "criu.kdat").write_bytes(b"remembered")
    return answers(asking(work, environment(library)))


def environment(library: Path, tracker: str = UffdWp.name, hold: Path | None = None) -> dict[str, str]:
    """What a CRIU is started with."""
    words = {"LD_PRELOAD": str(library), "CRCKPT_TRACKER": tracker, "PATH": os.environ["PATH"]}
    return words | ({"CRCKPT_HOLD": str(hold)} if hold else {})


def asking(work: Path, environment: dict[str, str], program: str = "criu_queries.py") -> subprocess.Popen[str]:
    """Somebody who asks what CRIU asks."""
    words = ["/usr/bin/python3", "-S", str(PROGRAMS / program), str(work)]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answers(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """The answers, and what was said on stderr."""
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    results = json.loads(out)
    assert isinstance(results, dict)
    return results, error


def test_results_of_the_preload_library_are_not_cached(library_answers: tuple[dict[str, Any], str]) -> None:
    results, _ = library_answers
    opens = {name: found for name, found in results.items() if name.startswith("kdat ")}
    assert opens.pop("kdat create") == "EEXIST"
    assert len(opens) == 8
    assert set(opens.values()) == {"ENOENT"}, opens


def test_self_test_passes_with_each_read_method(library_answers: tuple[dict[str, Any], str]) -> None:
    results, _ = library_answers
    assert results["reset"] == 2
    dirty = {name: found for name, found in results.items() if name.startswith("dirty ")}
    assert len(dirty) == 6
    assert all(dirty.values()), dirty


def test_library_reports_pages_written_or_unregistered_as_soft_dirty(
    library_answers: tuple[dict[str, Any], str],
) -> None:
    results, _ = library_answers
    assert results["unregistered"] == [DIRTY] * 6
    assert results["registered"] == [DIRTY] * 6
    assert results["after reset"] == [CLEAN] * 6, "and pages 6 and 7, which hold nothing, are still not there"
    assert results["one written"] == [CLEAN] * 3 + [DIRTY] + [CLEAN] * 2
    assert results["without soft-dirty"] == [PRESENT] * 6


def test_writes_between_scan_and_reset_count_in_the_next_dump(
    library_answers: tuple[dict[str, Any], str],
) -> None:
    """An outside process writes. Earlier writes count as long as CRIU asks, also in parts."""
    results, _ = library_answers
    assert results["of another"] == ANSWERS_OF_ANOTHER_LIBRARY


def test_mixed_mappings_read_as_the_kernel_reports(library_answers: tuple[dict[str, Any], str]) -> None:
    """Registered memory is queried separately, and no query takes long."""
    results, _ = library_answers
    assert results["of all kinds"] == {"asked": 78 * 4, "wrong": 0, "found": 5, "of the file": 2}


def test_programs_started_by_criu_do_not_get_the_library(library_answers: tuple[dict[str, Any], str]) -> None:
    results, _ = library_answers
    assert results["inherited"] == ["PATH"]


def test_unknown_requests_to_the_library_are_refused_with_a_message(
    library_answers: tuple[dict[str, Any], str],
) -> None:
    results, output = library_answers
    for what in ("flags", "size", "chosen by soft-dirty", "asked for written", "reset 1", "reset 44", "reset 5"):
        assert results[what] in ("ENOTSUP", "EOPNOTSUPP"), what
    assert "another number than 4 for clear_refs" in output
    assert "PAGEMAP_SCAN with WPALLOWED or WRITTEN" in output


def test_library_does_not_affect_files_that_it_does_not_watch(
    library_answers: tuple[dict[str, Any], str],
) -> None:
    results, _ = library_answers
    assert results["another file of that number"]
    assert results["mode"] == 0o640 & ~_umask()
    assert results["at once"] == 64
    assert results["the next"] in ("ENOTSUP", "EOPNOTSUPP"), "the library must not open more files than it can watch"


def test_library_has_no_dependencies(library: Path) -> None:
    needed = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" not in needed


def test_program_linked_with_musl_can_load_it(library: Path, tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc (musl-tools) is not installed")
    (tmp_path / "program.c").write_text(_MUSL)
    subprocess.run(["musl-gcc", "-o", str(tmp_path / "program"), str(tmp_path / "program.c")], check=True)
    words = [str(tmp_path / "program")]
    result = subprocess.run(words, env=environment(library), capture_output=True, text=True, check=True)
    assert result.stdout == "-1 1 -1 1\n"


def test_preload_variable_depends_on_whether_criu_is_a_script(tmp_path: Path) -> None:
    script, program = tmp_path / "script", tmp_path / "program"
    script.write_text("#!/bin/sh\n")
    program.write_bytes(b"\x7fELF")
    tracker = {"CRCKPT_TRACKER": "soft-dirty"}
    assert preload.environment(script, "soft-dirty") == {"CRCKPT_CRIU_PRELOAD": str(preload.LIBRARY)} | tracker
    assert preload.environment(program, "soft-dirty") == {"LD_PRELOAD": str(preload.LIBRARY)} | tracker


@pytest.mark.parametrize("tracker", TRACKERS)
def test_first_reset_of_the_tree_waits_for_the_commit(library: Path, tmp_path: Path, tracker: str) -> None:
    """After the commit the reset continues as without a hold. The commit is requested once."""
    without, _ = answers(asking(fresh(tmp_path / "without"), environment(library, tracker)))
    with gate(tmp_path / "hold") as hold:
        process = asking(fresh(tmp_path / "with"), environment(library, tracker, tmp_path / "hold"))
        assert select.select([hold.reached], [], [], SOON)[0]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert os.read(hold.reached, 9) == b"."
        reached = os.dup(hold.reached)
        hold.commit()
        results, output = answers(process)
        assert os.read(reached, 9) == b"", "it asked once"
        os.close(reached)
    assert results == without
    assert output.count(RESET_REFUSAL) == 0


@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.parametrize("how", ["released", "killed", "gone"])
def test_library_resets_no_page_without_a_commit(library: Path, tmp_path: Path, tracker: str, how: str) -> None:
    work = fresh(tmp_path / "work")
    if how == "gone":
        process = asking(work, environment(library, tracker, tmp_path / "hold"))
    else:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path / "hold")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        process = asking(work, environment(library, tracker, tmp_path / "hold"))
        assert owner.stdout.readline() == b"reached\n"
        if how == "killed":
            owner.kill()
        owner.communicate()
    results, output = answers(process)
    assert results["resets of another"] == ["ECANCELED", "ECANCELED"]
    assert RESET_REFUSAL in output
    assert results["reset"] == 2, "its own, as in a self-test"


RESETTING_PROGRAM = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
number = libc.openat64(os.open("/proc/self", os.O_RDONLY), b"clear_refs", os.O_RDWR)
print(libc.write(number, b"4", 2), ctypes.get_errno())
"""


def test_scan_of_pages_without_progress_is_an_error(tmp_path: Path) -> None:
    """Some kernels do not get past a huge page of 1 GiB that another userfaultfd has registered."""
    if NO_WRITE_PROTECTION:
        pytest.skip(NO_WRITE_PROTECTION)
    call = "found = syscall(SYS_ioctl, number, SCAN, &scan);"
    stuck = preload_library(tmp_path, call, f"{call} found = 0, scan.walk_end = scan.start;")
    words = ["/usr/bin/python3", "-S", "-c", RESETTING_PROGRAM]
    result = subprocess.run(words, env=environment(stuck), capture_output=True, text=True, timeout=SOON, check=True)
    assert result.stdout == f"-1 {errno.EIO}\n"
    assert "does not get on" in result.stderr


def test_soft_dirty_results_equal_those_without_the_library(library: Path, tmp_path: Path) -> None:
    alone, _ = answers(asking(fresh(tmp_path / "alone"), {"PATH": os.environ["PATH"]}))
    results, output = answers(asking(fresh(tmp_path / "with"), environment(library, SoftDirty.name)))
    assert results == alone
    assert output == ""


def test_pages_are_moved_to_criu_at_once_and_reported_in_runs(library: Path, tmp_path: Path) -> None:
    for name in ("alone", "with"):
        (tmp_path / name).mkdir()
    alone, _ = answers(asking(tmp_path / "alone", {}, "splices.py"))
    results, output = answers(asking(tmp_path / "with", environment(library), "splices.py"))
    runs = [PAGE, 3 * PAGE, PAGE, 11 * PAGE, 0]
    assert results["runs"] == runs * 2
    assert results["right"], "in the order in which they were asked for"
    assert results["no room"][:2] == [7 * PAGE // 2, "EFBIG"]
    assert results["no room"][-1] == "EFBIG"
    assert sum(results["no room"][2:-1]) == 7 * PAGE // 2
    assert (alone.pop("held"), results.pop("held")) == (2 * 16 + 2, 2 * 16 + 14)
    others = ("of another pipe", "to another file", "of another pipe of that number")
    refused = {name: results.pop(name) for name in others}
    assert set(refused.values()) <= {"ENOTSUP", "EOPNOTSUPP"}
    assert output.count("before it took all of one") == len(refused)
    assert results == {name: alone[name] for name in results}, "all else is as without it"


def fresh(work: Path) -> Path:
    """A directory with what CRIU would remember."""
    work.mkdir()
    (work / "criu.kdat").write_bytes(b"remembered")
    return work


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask
