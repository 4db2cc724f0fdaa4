"""What a guard does whose trap shows no wrong page on this kernel, or not as one; and what comes without it.

The others are taken out in tests/integration/test_tracking_guards.py, under the oracle.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from protection import pages, protect_all_maps
from target_processes import (
    ANSWERS_OF_ANOTHER_LIBRARY,
    NO_WRITE_PROTECTION,
    PROGRAMS,
    StatementRunner,
    preload_library,
    reset,
    state,
    wait_for,
)

from crckpt.criu.hold import Hold, gate
from crckpt.helper.calls.remote_calls import take_userfaultfds
from crckpt.host.syscalls import pagemap, userfaultfd
from crckpt.host.syscalls.pagemap import private_anonymous
from crckpt.host.syscalls.userfaultfd import WriteProtection
from crckpt.tracking.uffd_wp import UffdWp

PAGE = 4096
_FLAG_WP, _EVENT_FORK = 1 << 0, 1 << 1  # linux/userfaultfd.h

REFUSED = ("ENOTSUP", "EOPNOTSUPP")

PRELOAD: dict[str, tuple[str, str, str, tuple[object, ...]]] = {
    "criu.kdat is remembered": (
        'if (starts_with(last, "criu.kdat") && !tracker_is("soft-dirty"))',
        "if (0)",
        "kdat open64",
        ("ENOENT",),
    ),
    "the number is trusted": (
        "if (read_identity(number, &status) && status.st_dev == files[i].device && status.st_ino == files[i].inode)",
        "(void)status;",
        "another file of that number",
        (True,),
    ),
    "holes are marked": (
        "scan.return_mask = wanted, scan.vec = (uintptr_t)regions, scan.vec_len = AT_ONCE;",
        "",
        "after reset",
        ([8] * 6,),
    ),
    "any number resets": (
        "if (length < 1 || length > 2 || text[0] != '4' || (length == 2 && text[1] && text[1] != '\\n'))",
        "if (0)",
        "reset 1",
        REFUSED,
    ),
    "nobody looks before the reset": (
        "if (file->pid && !pass_gate())",
        "if (0)",
        "resets of another",
        (["ECANCELED", "ECANCELED"],),
    ),
    "its own bits are taken for the tree's": (
        "return !pid ? -1 : pid == pid_in(directory, own) ? 0 : pid;",
        "return pid;",
        "reset",
        (2,),
    ),
    "what was written is taken at the reset": (
        "if (!file || file->kind != PAGEMAP || file->pid <= 0)",
        "if (1)",
        "of another",
        (ANSWERS_OF_ANOTHER_LIBRARY,),
    ),
    "of two kinds of memory one is forgotten": (
        "long others = syscall(SYS_ioctl, number, SCAN, &other);",
        "long others = 0;",
        "of all kinds",
        ({"asked": 78 * 4, "wrong": 0, "found": 5, "of the file": 2},),
    ),
    "pages are read as CRIU reads them": (
        'if (tracker_is("soft-dirty") || !is_tracking())\n        return syscall(SYS_process_vm_readv',
        "if (1)\n        return syscall(SYS_process_vm_readv",
        "of another",
        (ANSWERS_OF_ANOTHER_LIBRARY,),
    ),
    "programs that CRIU starts inherit it": (
        'if (!starts_with(*one, "LD_PRELOAD="))',
        "",
        "inherited",
        (["PATH"],),
    ),
    "what is not recorded is taken for a commit": (
        "is_let = answer == COMMITTED;",
        "is_let = 1;",
        "resets of another",
        (["ECANCELED", "ECANCELED"],),
    ),
    "scans that reset are let through": (
        "if (asked->size != sizeof *asked || asked->flags)",
        "if (0)",
        "flags",
        REFUSED,
    ),
}


@pytest.fixture(autouse=True)
def _kernel_can() -> None:
    if NO_WRITE_PROTECTION:
        pytest.skip(NO_WRITE_PROTECTION)


def asked(library: Path, work: Path, *, is_let: bool) -> dict[str, Any]:
    """The answer of this preload library in a hold that lets it reset bits, or whose owner has died."""
    work.mkdir()
    (work / "criu.kdat").touch()
    with gate(work / "hold") as hold:
        hold.commit() if is_let else hold.release()
        return _answers(library, work, hold)


@pytest.fixture(scope="module")
def complete_library_answers(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """The answer of the complete library in a hold that lets it reset bits (True) or not."""
    work = tmp_path_factory.mktemp("whole")
    return {is_let: asked(library, work / str(is_let), is_let=is_let) for is_let in (True, False)}


def _answers(library: Path, work: Path, hold: Hold) -> dict[str, Any]:
    words = ["/usr/bin/python3", "-S", str(PROGRAMS / "criu_queries.py"), str(work)]
    preloaded = ("env", f"LD_PRELOAD={library}", f"CRCKPT_TRACKER={UffdWp.name}")
    environment = os.environ | hold.environment
    result = subprocess.run([*preloaded, *words], capture_output=True, text=True, check=True, env=environment)
    answers: dict[str, Any] = json.loads(result.stdout)
    return answers


@pytest.mark.parametrize("lacks", PRELOAD)
def test_preload_library_without_a_guard_answers_differently(
    tmp_path: Path, lacks: str, complete_library_answers: dict[bool, dict[str, Any]]
) -> None:
    """If answers of a library were cached, a CRIU without it would take every page for clean."""
    old, new, question, right = PRELOAD[lacks]
    is_let = question == "of another"
    assert complete_library_answers[is_let][question] in right
    changed = preload_library(tmp_path, old, new)
    assert asked(changed, tmp_path / "changed", is_let=is_let)[question] not in right


def test_new_mapping_reads_as_written_whatever_its_marks(target: StatementRunner) -> None:
    """Before Linux 6.13, pages moved by mremap kept their marks: registered again, they would have been clean."""
    place = target.do("result = area(64); write(result, range(64))")
    protection = protect_all_maps(target.pid)
    reset(target.pid)
    (one,) = [one for one in private_anonymous(target.pid) if one.start <= place < one.end]
    protection.register(one, is_new=False)
    assert pages(target.pid, place) == set(), "without the guard"
    protection.register(one)
    assert pages(target.pid, place) == set(range(64))
    protection.close()


def test_userfaultfd_with_fork_events_would_block_the_process(target: StatementRunner) -> None:
    assert not userfaultfd.ASYNC_WRITE_PROTECTION & _EVENT_FORK
    protection = protect_all_maps(target.pid, userfaultfd.ASYNC_WRITE_PROTECTION | _EVENT_FORK)
    assert target.process.stdin is not None
    assert target.process.stdout is not None
    target.process.stdin.write("result = os.fork() or os._exit(0)\n")
    target.process.stdin.flush()
    wait_for(lambda: state(target.pid) in "DS" and "userfaultfd" in wchan(target.pid), "it to hang")
    protection.close()
    assert target.process.stdout.readline().startswith("done"), "the process continues once the userfaultfd is closed"


def wchan(pid: int) -> str:
    return Path(f"/proc/{pid}/wchan").read_text()


def test_page_that_the_program_protects_itself_counts_as_written(
    target: StatementRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that a program protects itself (not asynchronously) read as unwritten and unregistered."""
    place = target.do("result = area(64); write(result, range(64))")
    (taken,) = take_userfaultfds([target.pid])
    own = WriteProtection(taken.descriptor, _FLAG_WP)
    (one,) = [one for one in private_anonymous(target.pid) if one.start <= place < one.end]
    own.register(one)
    _protect(taken.descriptor, place, 8)
    assert pages(target.pid, place) == set(range(64)), "all of it counts as written"
    # The guard is switched off by a patch, because no argument does it.
    monkeypatch.setattr(pagemap, "_PAGE_IS_WPALLOWED", 0)
    assert not pages(target.pid, place) >= set(range(8)), "without the guard these would be clean"
    own.close()


def _protect(descriptor: int, place: int, count: int) -> None:
    fcntl.ioctl(descriptor, 0xC018AA06, struct.pack("<3Q", place, count * PAGE, 1))
