"""Jobs share pages: a second job of a process and further workers of a program take little space, and stand alone."""

from __future__ import annotations

from pathlib import Path

from command import Crckpt
from stopped_trees import program
from trees import started

from crckpt.model import JobName
from crckpt.store import Repository

WORKERS = 10


def _stored(store: Path) -> int:
    return sum(path.stat().st_size for path in store.glob("packs/*/*.pack"))


def test_second_job_of_the_same_process_shares_pages(crckpt: Crckpt) -> None:
    with started(program("resident", "--own", "32")) as tree:
        first, second = (
            crckpt.run("dump", str(tree.pid), job, "--json").document["result"]["checkpoint"] for job in ("one", "two")
        )
        assert second["parent"] is None
        for size in ("stored_bytes", "new_bytes"):
            assert second["statistics"][size] < 0.05 * first["statistics"][size]
        assert second["statistics"]["raw_bytes"] > 0.9 * first["statistics"]["raw_bytes"]


def test_ten_workers_of_one_program_share_pages(crckpt: Crckpt) -> None:
    """Each worker has its own addresses, and so different pages."""
    sizes = []
    for number in range(WORKERS):
        # One after the other: each checks its memory all the time.
        with started(program("resident", "--own", "16")) as tree:
            crckpt.run("dump", str(tree.pid), f"worker-{number}")
            sizes.append(_stored(crckpt.store))
    assert sizes[-1] < 2 * sizes[0], sizes


def test_second_job_restores_after_the_first_is_removed(crckpt: Crckpt) -> None:
    with started(program("resident", "--own", "8")) as tree:
        crckpt.run("dump", str(tree.pid), "one")
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), "two", "--stop")
        tree.wait_gone()
        repository = Repository.open(crckpt.store)
        (one, two) = (
            {use.digest for checkpoint in repository.checkpoints(JobName(job)) for use in checkpoint.packs}
            for job in ("one", "two")
        )
        assert one & two
        crckpt.run("rm", "one")
        crckpt.run("gc")
        crckpt.run("verify", "--all")
        crckpt.run("restore", "two", "--detach")
        tree.wait_growth(before)
