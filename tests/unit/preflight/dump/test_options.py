"""CRIU options that a tree needs, and why."""

from __future__ import annotations

from dump_plans import (
    FILE,
    TWO_PROCESSES,
    in_namespaces,
    plan,
    why,
    with_files,
    with_tree,
)
from msgspec.structs import replace
from observations import ROOT

from crckpt.model import DumpOptions
from crckpt.preflight.dump.checks import DumpPlan


def test_plain_tree_needs_no_option_of_criu() -> None:
    assert plan(TWO_PROCESSES) == DumpPlan(DumpOptions(), (), (), (), (), None)
    assert plan(TWO_PROCESSES, "keep").options == DumpOptions(), "no connection, no option"


def test_file_locks_add_an_option() -> None:
    found = plan(with_files(FILE, replace(FILE, info="pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 100 08:01:5 0 EOF\n")))
    assert found.options.file_locks
    assert why(found, "--file-locks") == "PID 100 holds a lock on /srv/data"
    assert not plan(with_files(replace(FILE, target="/srv/lock:file"))).options.file_locks


def test_private_network_is_locked_completely() -> None:
    in_own_network = with_tree(in_namespaces(ROOT, net=99))
    assert plan(TWO_PROCESSES).options.network_lock is None
    assert plan(in_own_network).options.network_lock == "nftables"
    assert plan(in_own_network, nftables=False).options.network_lock == "skip"
