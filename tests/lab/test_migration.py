"""`crckpt migrate` between two hosts, as its users see it: what runs where, what the client gets, what is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hosts import CannotMakeLab, talking
from migrations import JOB, SERVER, copies, served
from namespaces import Namespaces
from two_hosts import in_namespaces


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


def migrate(
    lab: Namespaces, pid: int, *options: str, there: str = "destination", here: str = "source"
) -> dict[str, Any]:
    """Migrate; return the result."""
    done = lab.run(here, "crckpt", "migrate", str(pid), there, JOB, "--json", *options)
    result: dict[str, Any] = json.loads(done.out)["result"]
    return result


@pytest.mark.parametrize("version", [4, 6])
def test_the_client_sees_a_pause_and_never_a_reset(lab: Namespaces, version: int) -> None:
    """Its one connection goes on: every answer comes once, in order, from the source and then from the destination."""
    address = lab.service(version)
    try:
        with served(lab, "--memory", "8", "--rewrite", "0.05", address=address) as pid:
            with talking(lab, version) as client:
                client.wait_for_replies()
                with lab.watched(SERVER) as watch:
                    result = migrate(lab, pid, "--tcp", "keep", "--move-ip", f"{lab.services[version]}@{lab.device}")
                    report = client.wait_for_replies()
                assert (report["wrong"], report["ended"], report["hosts"]) == (None, None, ["source", "destination"])
                assert client.check()["memory"] == "intact"
                assert watch.doubled == ()
                assert watch.looks > 0
            (process,) = copies(lab)
            assert (process.host, process.pid) == ("destination", result["pid"] and pid)
            assert lab.is_at("destination", version)
            assert not lab.is_at("source", version)
            for host in ("source", "destination"):
                assert lab.run(host, "nft", "list", "tables").out == ""
    finally:
        lab.bring_service_back(version)
