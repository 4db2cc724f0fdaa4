"""The stores of both hosts keep what an unfinished move needs, and say so."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hosts import HOSTS, CannotMakeLab
from migrations import FIRST, JOB, copies, crckpts, end, find_moves, migrate_with_fault, served, wait_until_settled
from namespaces import Namespaces
from two_hosts import in_namespaces

REFUSED = 24
SIDES = HOSTS[:2]


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


def test_a_move_that_is_unfinished(lab: Namespaces) -> None:
    with served(lab) as pid:
        end(migrate_with_fault(lab, pid, "source", f"CRCKPT_KILL_AT={FIRST['source']}>send.Ended:1"))
        wait_until_settled(lab)
        assert copies(lab) == []
        (here,) = find_moves(lab, "source")
        (there,) = find_moves(lab, "destination")
        assert (here["state"], there["state"], here["id"]) == ("ended", "prepared", there["id"])
        for move in (here, there):
            # Both sides name the same command, to be typed on the source.
            assert (move["runs_on"], move["next_on"]) == (None, "source")
            assert move["next_command"] == f"crckpt migrate --resume {here['id']}"
        for host in SIDES:
            for words in (("rm", JOB, "--all", "--yes"), ("restore", JOB, "--detach", "--despite-move")):
                refused = lab.run(host, "crckpt", *words, status=REFUSED)
                assert f"crckpt migrate --resume {here['id']}" in refused.err
                assert ("on source: crckpt" in refused.err) == (host == "destination")
            assert "unfinished move" in lab.run(host, "crckpt", "list").out
            lab.run(host, "crckpt", "gc")
            lab.run(host, "crckpt", "verify", "--all")
        resumed = json.loads(lab.run("source", "crckpt", "migrate", "--resume", str(here["id"]), "--json").out)[
            "result"
        ]
        (process,) = copies(lab)
        assert (process.host, process.pid) == ("destination", resumed["pid"])
        assert (resumed["runs_on"], resumed["next_command"]) == ("destination", "")
        # What runs over there needs no checkpoint here.
        assert "(moved to destination)" in lab.run("source", "crckpt", "list").out
        lab.run("source", "crckpt", "rm", JOB, "--all")
        assert crckpts(lab, "source") == []
