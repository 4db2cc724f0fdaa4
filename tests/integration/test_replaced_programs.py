"""Programs of a tracked tree that are replaced (exec), before a dump or when it has begun: the checkpoint is right.

So it is if CRIU misses pages in what it counts from.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import Crckpt
from incremental import NO_TRACKER, wrapper
from trees import wait_for

pytestmark = [pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER), pytest.mark.usefixtures("orphans_are_reaped")]

PROGRAM_WITH_A_CHILD_THAT_EXECS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
if os.fork() == 0:
    signal.sigwait([signal.SIGUSR1])
    os.execv("/bin/sleep", ["sleep", "1000"])
os.wait()
"""


class Family:
    """A process whose child becomes another program on SIGUSR1."""

    def __init__(self) -> None:
        null = subprocess.DEVNULL
        argv = [sys.executable, "-c", PROGRAM_WITH_A_CHILD_THAT_EXECS]
        self._process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
        self.pid = self._process.pid
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        wait_for(lambda: children.read_text() != "", 60, "the child")
        self.child = int(children.read_text())

    def dumped(self, crckpt: Crckpt, *words: str) -> dict[str, Any]:
        output = crckpt.run("dump", str(self.pid), "job", "--incremental", "--json", *words)
        result: dict[str, Any] = output.document["result"]
        return result

    def end(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        if self._process.returncode is None:
            self._process.wait()
        else:
            os.waitpid(self.pid, 0)
        with suppress(ChildProcessError):  # its parent was faster, before it ended itself
            os.waitpid(self.child, 0)

    def is_restored(self, crckpt: Crckpt, comm: str = "sleep") -> None:
        """Check that the child is restored as this program."""
        self.end()
        crckpt.run("restore", "job", "--detach")
        assert Path(f"/proc/{self.child}/comm").read_text().startswith(comm)


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    try:
        yield family
    finally:
        family.end()


def test_replaced_child_is_dumped_in_full(crckpt: Crckpt, family: Family) -> None:
    results = [family.dumped(crckpt)]
    os.kill(family.child, signal.SIGUSR1)
    wait_for(lambda: Path(f"/proc/{family.child}/comm").read_text() == "sleep\n", 60, "the exec")
    results += [family.dumped(crckpt) for _ in range(2)]
    ids = [one["checkpoint"]["id"] for one in results]
    assert [one["tracked"]["base"] for one in results] == [None, *ids[:2]]
    assert results[1]["tracked"]["whole"] == [f"PID {family.child}: the program was replaced (exec)"]
    assert results[2]["tracked"]["whole"] == []
    crckpt.run("rm", *ids[:2])
    crckpt.run("gc")
    family.is_restored(crckpt)


def once(family: Family, tmp_path: Path, before: str) -> Path:
    """A CRIU that runs `before` once, before the command that the file `when` names."""
    when = tmp_path / "when"
    asked = f'[ "$1 $2 $3" != "$(cat {when} 2>/dev/null) --tree {family.pid}" ]'
    return wrapper(tmp_path, f"{asked} || {{ rm {when}; {before}; }}")


@pytest.fixture
def criu_that_replaces_the_child(family: Family, tmp_path: Path) -> Path:
    """A CRIU that lets the child be replaced."""
    replaced = f"kill -USR1 {family.child}; until grep -qx sleep /proc/{family.child}/comm; do :; done"
    return once(family, tmp_path, replaced)


@pytest.fixture
def criu_that_finds_no_page(family: Family, tmp_path: Path) -> Path:
    """A CRIU that finds no page of the child in its base: only the head of the page map is left."""
    words = (
        "for word; do case $last in --images-dir) at=$word ;; --prev-images-dir) base=$word ;; esac; last=$word; done"
    )
    cut = f'(cd "$at" && truncate -s 14 "$base/pagemap-{family.child}.img")'
    return once(family, tmp_path, f'{words}; [ -z "$base" ] || {cut}')


MISFIT_MESSAGE = (
    "does not match what was copied before: the parent of this incremental checkpoint is missing, damaged, or "
)
EACH_DUMP_MODE = pytest.mark.parametrize("words", [(), ("--stop",)], ids=["running", "stop"])


@EACH_DUMP_MODE
def test_child_that_execs_during_a_dump_is_restored_as_its_new_program(
    crckpt: Crckpt, family: Family, criu_that_replaces_the_child: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    criu = ("--criu", str(criu_that_replaces_the_child))
    first = family.dumped(crckpt, *criu)
    (tmp_path / "when").write_text("dump")
    second = family.dumped(crckpt, *criu, *words)
    assert not (tmp_path / "when").exists(), "the child was replaced"
    assert second["tracked"]["base"] == first["checkpoint"]["id"]
    if not words:
        assert family.dumped(crckpt, *criu)["tracked"]["base"] == second["checkpoint"]["id"]
    family.is_restored(crckpt)


def test_child_that_execs_during_a_round_is_restored_as_its_new_program(
    crckpt: Crckpt, family: Family, criu_that_replaces_the_child: Path, tmp_path: Path
) -> None:
    criu = ("--criu", str(criu_that_replaces_the_child))
    first = family.dumped(crckpt, *criu)
    (tmp_path / "when").write_text("pre-dump")
    result = family.dumped(crckpt, *criu, "--pre-copy")
    assert not (tmp_path / "when").exists(), "the child was replaced"
    assert result["tracked"]["base"] == first["checkpoint"]["id"]
    assert result["tracked"]["rounds"] == len(result["copying"]["rounds"]) > 0
    family.is_restored(crckpt)


@EACH_DUMP_MODE
def test_dump_that_does_not_fit_its_base_is_repeated(
    crckpt: Crckpt, family: Family, criu_that_finds_no_page: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    criu = ("--criu", str(criu_that_finds_no_page))
    family.dumped(crckpt, *criu)
    (tmp_path / "when").write_text("dump")
    second = family.dumped(crckpt, *criu, *words)
    assert second["tracked"]["base"] is None
    why = second["tracked"]["why_full"]
    assert why.startswith(f"what CRIU found of process {family.child} (python"), why
    assert MISFIT_MESSAGE in why
    if not words:
        assert family.dumped(crckpt, *criu)["tracked"]["base"] == second["checkpoint"]["id"]
    family.is_restored(crckpt, "python")


def test_round_that_does_not_fit_its_base_is_repeated(
    crckpt: Crckpt, family: Family, criu_that_finds_no_page: Path, tmp_path: Path
) -> None:
    criu = ("--criu", str(criu_that_finds_no_page))
    family.dumped(crckpt, *criu)
    (tmp_path / "when").write_text("pre-dump")
    result = family.dumped(crckpt, *criu, "--pre-copy")
    assert (result["tracked"]["base"], result["tracked"]["why_full"]) == (None, "")
    assert result["tracked"]["rounds"] == len(result["copying"]["rounds"]) > 0
    family.is_restored(crckpt, "python")


def test_dump_with_a_freeze_limit_that_does_not_fit_its_base_fails(
    crckpt: Crckpt, family: Family, criu_that_finds_no_page: Path, tmp_path: Path
) -> None:
    (tmp_path / "when").write_text("dump")
    words = ("--criu", str(criu_that_finds_no_page), "--pre-copy", "--max-freeze", "60s", "--abort-over")
    result = crckpt.run("dump", str(family.pid), "job", "--incremental", "--json", *words, status=21)
    message = result.document["error"]["message"]
    assert message.startswith("the dump failed: the parent of this incremental checkpoint is missing"), message
    assert message.endswith("; no checkpoint was made; the tree keeps running"), message
    family.dumped(crckpt, "--criu", str(criu_that_finds_no_page))
    family.is_restored(crckpt, "python")
