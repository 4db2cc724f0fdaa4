"""A command runs in other namespaces with no more rights than the program there has."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from small_programs import WAIT_STATEMENTS, program

from crckpt.host.namespaces.run_as_tree import TreeRights, rights_of, start
from crckpt.images.core import Rights

NOBODY = 65534
PROGRAM = Rights((33, 33, 33, 33), (34, 35, 34, 34), frozenset({5, 4}), (0, 0b11, 0b1, 0b111, 0), confined=False)


def test_command_run_in_the_namespaces_of_a_tree_has_the_rights_of_its_program() -> None:
    assert rights_of(PROGRAM) == TreeRights(33, 35, (4, 5), 0), "of a user: no capabilities"
    root = replace(PROGRAM, uids=(0, 0, 0, 0))
    assert rights_of(root) == TreeRights(0, 35, (4, 5), 0b11), "of root: those that are permitted"
    assert rights_of(replace(root, uids=(0, 0, 33, 0))).uid == 33, "who may become a user is that user"


@pytest.fixture
def init() -> Iterator[int]:
    """A process of the namespaces: our own ones."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to join namespaces")
    with program(WAIT_STATEMENTS) as process:
        yield process.pid


def output_of(init: int, rights: TreeRights, output: Path, *words: str) -> tuple[int, str]:
    child = start(init, rights, words, joining=(), output=output)
    return child.wait(), output.read_text()


def test_command_run_as_the_user_of_a_tree_gets_no_rights_of_root(init: int, tmp_path: Path) -> None:
    status, text = output_of(init, TreeRights(NOBODY, NOBODY, (4,), 0), tmp_path / "out", "cat", "/proc/self/status")
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert status == 0
    assert fields["Uid"].split() == fields["Gid"].split() == [str(NOBODY)] * 4
    assert (fields["Groups"].split(), fields["NoNewPrivs"]) == (["4"], "1")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0


def test_command_run_as_a_root_with_few_capabilities_has_no_more(init: int, tmp_path: Path) -> None:
    rights = TreeRights(0, 0, (), 1 << 7 | 1 << 21)
    _, text = output_of(init, rights, tmp_path / "out", "grep", "CapEff", "/proc/self/status")
    assert int(text.split()[1], 16) == rights.capabilities


@pytest.mark.parametrize(
    ("words", "status"), [(("sh", "-c", "exit 7"), 7), (("sh", "-c", "kill -TERM $$"), -signal.SIGTERM)]
)
def test_exit_status_of_a_command_run_in_a_tree_is_returned(
    init: int, tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    assert output_of(init, TreeRights(NOBODY, NOBODY, (), 0), tmp_path / "out", *words)[0] == status


def test_command_that_is_missing_in_the_mounts_of_a_tree_is_reported(init: int, tmp_path: Path) -> None:
    status, text = output_of(init, TreeRights(NOBODY, NOBODY, (), 0), tmp_path / "out", "/none\x01")
    assert (status, text.startswith("cannot run /none")) == (127, True)


def test_command_cannot_be_run_in_namespaces_that_have_ended(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    status, text = output_of(ended.pid, TreeRights(0, 0, (), 0), tmp_path / "out", "true")
    assert status == 1
    assert "No such file" in text
