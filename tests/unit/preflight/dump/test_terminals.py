"""Terminals and sessions outside a tree."""

from __future__ import annotations

import os
import stat

import pytest
from dump_plans import CHILD, FILE, plan, why, with_files, with_tree
from msgspec.structs import replace
from observations import ROOT

TERMINAL = replace(FILE, fd=0, target="/dev/pts/3", mode=stat.S_IFCHR)


def test_tree_in_an_outside_session_adds_criu_option_shell_job() -> None:
    found = plan(with_tree(replace(ROOT, sid=7)))
    assert found.options.shell_job
    assert "7" in why(found, "--shell-job")


def test_terminal_from_outside_the_tree_adds_criu_option_shell_job() -> None:
    found = plan(with_files(TERMINAL))
    assert found.options.shell_job
    assert "/dev/pts/3" in why(found, "--shell-job")
    assert not plan(with_files(replace(TERMINAL, target="/dev/pts/3 (deleted)"))).options.shell_job


@pytest.mark.parametrize("target", ["/dev/tty", "/dev/tty1", "/dev/console"])
def test_dev_tty_or_a_console_is_outside_the_tree_if_the_session_of_its_process_is(target: str) -> None:
    observation = with_files(replace(TERMINAL, target=target))
    assert not plan(observation).options.shell_job
    child = replace(CHILD, sid=7)
    outside = replace(observation, tree=replace(observation.tree, processes=(ROOT, child)))
    of_child = replace(outside, descriptors=(replace(TERMINAL, pid=child.pid, target=target),))
    assert target in why(plan(of_child), "--shell-job")


@pytest.mark.parametrize("master", ["/dev/ptmx", "/dev/pts/ptmx", "/mnt/pts/ptmx"])
def test_terminal_whose_master_is_in_the_tree_needs_no_shell_job(master: str) -> None:
    """The index tells which terminal a master belongs to."""
    master_side = replace(TERMINAL, fd=4, target=master, device=os.makedev(5, 2))
    inside = replace(master_side, info="pos:\t0\nflags:\t02\ntty-index:\t3\n")
    assert not plan(with_files(inside, TERMINAL, replace(TERMINAL, target="/dev/pts/3 (deleted)"))).options.shell_job
    other = replace(inside, info="pos:\t0\ntty-index:\t33\n")
    assert plan(with_files(other, TERMINAL)).options.shell_job


def test_processes_that_lose_their_controlling_terminal_are_a_warning() -> None:
    """The leader of the session gets it again. Without the leader the tree joins CRIU's session."""
    leader, child = replace(ROOT, terminal=34816), replace(CHILD, sid=ROOT.pid, terminal=34816)
    (warning,) = plan(with_tree(leader, child, replace(child, pid=102, terminal=0))).warnings
    assert warning.key == "terminal-of-leader"
    assert f"process {child.pid} ({child.comm}) cannot" in warning.what
    (warning,) = plan(with_tree(leader, child, replace(child, pid=102))).warnings
    assert f"process {child.pid} ({child.comm}) and 1 more" in warning.what
    assert plan(with_tree(leader, replace(child, state="zombie"))).warnings == ()
    assert plan(with_tree(replace(leader, sid=7), replace(child, sid=7))).warnings == ()


def test_too_large_terminal_number_is_a_blocker() -> None:
    terminal = replace(TERMINAL, device=os.makedev(139, 233))
    large = replace(terminal, target="/dev/pts/1001")
    assert [found.key for found in plan(with_files(large)).blockers] == ["terminal-large"]
    assert plan(with_files(replace(terminal, target="/dev/pts/1000"))).blockers == ()
