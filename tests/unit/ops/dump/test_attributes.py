"""Data read by a PID counts only while the PID belongs to that process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from crckpt.host import proc
from crckpt.host.observe.tree import leave_out_ended, observe
from crckpt.ops.dump.details import Answers, record_attributes, record_files

NOBODY = 65534
FAMILY = """
import os, sys
os.chdir(sys.argv[1])
if os.fork():
    print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A directory that a user can replace."""
    (tmp_path / "users/inner").mkdir(parents=True)
    os.chown(tmp_path / "users", NOBODY, NOBODY)
    return str(tmp_path / "users/inner")


@pytest.fixture
def family(place: str) -> Iterator[proc.Tree]:
    """A process and its child, both in that directory."""
    words = ("/usr/bin/python3", "-c", FAMILY, place)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        root = proc.read_process(process.pid)
        assert root is not None
        yield proc.read_tree(root)


def with_another_child(tree: proc.Tree) -> proc.Tree:
    """The tree as it was observed before another process got the PID of its child."""
    root, child = tree.processes
    return proc.Tree(root, (root, replace(child, start=child.start - 1)))


def with_another_root(tree: proc.Tree) -> proc.Process:
    return replace(tree.root, start=tree.root.start - 1)


def test_command_lines_belong_to_the_identified_process(family: proc.Tree, place: str) -> None:
    commands = [(one.pid, words[0], directory) for one, words, directory in proc.read_commands(family)]
    assert commands == [(pid, "/usr/bin/python3", place) for pid in family.pids]
    assert [one.pid for one, *_ in proc.read_commands(with_another_child(family))] == [family.root.pid]


def test_children_belong_to_the_identified_process(family: proc.Tree) -> None:
    assert len(family.pids) == 2
    assert proc.read_tree(with_another_root(family)).pids == (family.root.pid,)


def test_observation_belongs_to_the_identified_process(family: proc.Tree) -> None:
    own = proc.read_process(os.getpid())
    assert own is not None
    observed = observe(family.root, own)
    root, child = family.pids
    assert {found.pid for found in observed.descriptors} == {root, child}
    assert leave_out_ended(observed) is observed
    kept = leave_out_ended(replace(observed, tree=with_another_child(family)))
    assert kept.tree.pids == (root,)
    assert {found.pid for found in kept.descriptors} == {root}
    assert len(kept.descriptors) == len([found for found in observed.descriptors if found.pid == root])


def test_attributes_belong_to_the_identified_process(family: proc.Tree) -> None:
    def recorded(root: proc.Process) -> list[int]:
        return [process.pid for process in record_attributes(root, Answers()).processes]

    assert recorded(family.root) == list(family.pids)
    assert recorded(with_another_root(family)) == []


def test_files_of_another_process_are_not_allowed(family: proc.Tree, place: str) -> None:
    """A file of another process would count as a file of the tree."""
    assert place in record_files(family, ())["files"]
    assert place not in record_files(proc.Tree(family.root, (with_another_root(family),)), ())["files"]
