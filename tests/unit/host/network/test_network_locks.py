"""Network locks of CRIU are found and lifted."""

from __future__ import annotations

import secrets

import pytest

from crckpt.host.network import packet_filter
from crckpt.host.process import run
from crckpt.model import RunId


def test_network_lock_is_found_and_lifted() -> None:
    if not packet_filter.can_filter():
        pytest.skip("no nft, or the kernel does not let us look at its packet filter")
    run_id = f"test-{secrets.token_hex(8)}"
    assert packet_filter.lift_lock(RunId(run_id)) is None
    made = run.run([str(packet_filter.find_nft()), "add", "table", "inet", f"CRIU-{run_id}"])
    if not made.ok:
        pytest.skip(f"no table can be made here: {made.output}")
    look = [str(packet_filter.find_nft()), "list", "table", "inet", f"CRIU-{run_id}"]
    assert run.run(look).ok
    assert packet_filter.lift_lock(RunId(run_id)) == f"CRIU-{run_id}"
    assert not run.run(look).ok


@pytest.mark.usefixtures("commands")
def test_network_lock_is_not_lifted_without_nft() -> None:
    if packet_filter.find_nft() is not None:
        pytest.skip("the nft that came with CRIU is there")
    assert (packet_filter.can_filter(), packet_filter.lift_lock(RunId("x"))) == (False, None)
