"""The supplementary groups of a restored program are those that it had, not those of the crckpt that restores it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt
from stopped_trees import JOB, detached_in_namespace, program, stopped
from trees import NOBODY, Case

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

WITH_GROUPS_0_AND_4: Final = ("setpriv", "--groups=0,4")


def words(user: int, groups: str) -> tuple[str, ...]:
    """The words before a command that give it these groups."""
    return ("setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={groups}" if groups else "--clear-groups")


def groups_of(pid: int) -> set[str]:
    """The groups of all threads of the tree."""
    statuses = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return {line.split("\t")[1].strip() for status in statuses for line in status.splitlines() if "Groups:" in line}


@pytest.mark.parametrize("groups", ["", "7", "7 8"])
@pytest.mark.parametrize("user", [0, NOBODY])
def test_restored_program_has_its_own_groups(crckpt: Crckpt, user: int, groups: str) -> None:
    """With root's groups, the program could open files that it could not open before."""
    case = program("threads")
    with stopped(crckpt, Case("groups", (*words(user, groups.replace(" ", ",")), *case.argv), user=user)) as tree:
        before = tree.counters()
        replace(crckpt, before=WITH_GROUPS_0_AND_4).run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert groups_of(tree.pid) == {groups}


def test_program_in_a_new_pid_namespace_has_its_own_groups(crckpt: Crckpt) -> None:
    case = program("threads")
    crckpt_with_groups = replace(crckpt, before=WITH_GROUPS_0_AND_4)
    with stopped(crckpt, Case("groups", (*words(NOBODY, ""), *case.argv), user=NOBODY)):
        with detached_in_namespace(crckpt_with_groups) as init:
            (pid,) = psutil.Process(init).children()
            assert groups_of(pid.pid) == {""}
        assert crckpt_with_groups.run("rehearse", JOB).err == ""
