"""The last checkpoint of a program that its dump ended is not removed by mistake."""

from __future__ import annotations

import pytest
from command import Crckpt
from stopped_trees import JOB, program, stopped
from trees import Tree, started

from crckpt.store import Repository

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

REFUSED = 24


@pytest.mark.parametrize("refs", [(JOB,), (JOB, "--all")], ids=" ".join)
def test_last_checkpoint_of_a_stopped_program_is_kept(crckpt: Crckpt, refs: tuple[str, ...]) -> None:
    with stopped(crckpt, program("counter")) as tree:
        error = crckpt.run("rm", *refs, status=REFUSED).err
        assert "has the last state of a program that dump --stop ended" in error
        assert crckpt.run("rm", *refs, "--json", status=REFUSED).document["error"]["code"] == REFUSED
        crckpt.run("restore", JOB, "--detach")
        # The checkpoint can be removed even after the restored program has ended.
        tree.end()
        crckpt.run("rm", *refs)
        assert Repository.open(crckpt.store).ids() == ()


def test_checkpoint_of_each_stopped_worker_is_kept(crckpt: Crckpt) -> None:
    case = program("counter")
    with started(case) as first, started(case) as second:
        for tree in (first, second):
            crckpt.run("dump", str(tree.pid), JOB, "--stop")
            tree.wait_gone()
        assert "has the last state" in crckpt.run("rm", f"{JOB}~1", status=REFUSED).err
        crckpt.run("restore", f"{JOB}~1", "--detach")
        crckpt.run("rm", f"{JOB}~1")


def test_checkpoint_of_a_restarted_program_can_be_removed(crckpt: Crckpt) -> None:
    """A script that keeps the newest checkpoints removes the old ones."""
    case = program("counter")
    with stopped(crckpt, case), started(case) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        crckpt.run("rm", f"{JOB}~1")


def test_checkpoint_restored_by_an_older_crckpt_can_be_removed(crckpt: Crckpt) -> None:
    """The older crckpt left no mark, but the program runs."""
    with stopped(crckpt, program("counter")):
        crckpt.run("restore", JOB, "--detach")
        (made,) = Repository.open(crckpt.store).ids()
        (crckpt.store / "refs" / "restored" / made).unlink()
        crckpt.run("rm", JOB)


def test_commands_with_quiet_print_nothing(crckpt: Crckpt, tree: Tree) -> None:
    pid = str(tree.pid)
    commands = (
        ("dump", pid, JOB),
        ("dump", pid, JOB, "--verbose"),
        ("verify", "--all"),
        ("tag", JOB, "good"),
        ("rm", f"{JOB}~1"),
        ("gc",),
    )
    for command in commands:
        result = crckpt.run(*command, "--quiet")
        assert (result.out, result.err) == ("", "")
    # With --quiet these commands still print what the user asked for.
    assert len(crckpt.run("list", "--quiet").out.splitlines()) == 2
    assert "can be checkpointed" in crckpt.run("dump", pid, JOB, "--dry-run", "-q").out
    assert crckpt.run("show", JOB, "--quiet", "--json").document
    assert crckpt.run("show", "nosuch", "--quiet", status=12).err.startswith("crckpt: there is no job 'nosuch'\n")
