"""Facts about this host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crckpt.host import run, support


def facts(store: Path) -> dict[str, support.Fact]:
    return {fact.name: fact for fact in support.probe(store)}


def test_every_fact_is_told_once_and_is_whole(tmp_path: Path) -> None:
    told = list(support.probe(tmp_path))
    assert len({fact.name for fact in told}) == len(told)
    assert {fact.state for fact in told} <= {"ok", "limited", "missing"}
    assert all(fact.name and fact.detail for fact in told)
    assert told[0] == support.Fact("kernel", "ok", f"{os.uname().release} on {os.uname().machine}")


def test_the_store_that_is_not_made_yet(tmp_path: Path) -> None:
    fact = facts(tmp_path / "a/b/store")["store"]
    assert str(tmp_path / "a/b/store") in fact.detail


def test_privileges_are_those_of_the_process(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        assert facts(tmp_path)["privileges"].state == "missing"
        pytest.skip("the rest needs root")
    assert facts(tmp_path)["privileges"].state in ("ok", "limited")
    os.seteuid(65534)
    try:
        fact = facts(Path("/"))["privileges"]
    finally:
        os.seteuid(0)
    assert (fact.state, fact.fix) == ("missing", "sudo crckpt ...")


def test_a_store_below_a_directory_that_is_closed_to_us(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        assert "store" in facts(closed / "store")
    finally:
        os.seteuid(0)


def test_tools_are_looked_for_where_they_are_started_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"flock", "unshare", "nsenter"} & facts(tmp_path).keys()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not {"flock", "unshare", "nsenter"} & facts(tmp_path).keys()
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", str(tmp_path))
    found = facts(tmp_path)
    assert {found[tool].state for tool in ("flock", "unshare", "nsenter")} == {"missing"}
    assert found["flock"].fix == "apt-get install util-linux"
