"""Doctor sorts the checks of a host by severity, and tries fixes one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.criu.find import Criu, Search
from crckpt.host.probes.trial import Fact
from crckpt.ops.doctor import Diagnosis, judge_criu
from crckpt.tracking.preload import library


def fact(key: str, state: str = "missing", fix: str = "") -> Fact:
    return Fact(key, state, f"{key} is {state}", "", fix, safe=bool(fix))


def diagnosis(*facts: Fact) -> Diagnosis:
    return Diagnosis(facts, ())


def keys(facts: tuple[Fact, ...]) -> list[str]:
    return [each.key for each in facts]


def test_doctor_lists_blockers_of_every_checkpoint_first() -> None:
    limited = (fact("memory", "limited"), fact("capabilities", "limited"))
    found = diagnosis(*limited, fact("tun"), fact("criu"), fact("x", "ok"))
    assert keys(found.obstacles) == ["criu"]
    assert not found.able
    assert keys(found.problems) == ["criu", "memory", "capabilities", "tun"]
    assert diagnosis(fact("tun")).able


def test_missing_features_that_are_not_used_are_not_problems() -> None:
    found = diagnosis(fact("lock_iptables"), fact("ssh"), fact("lazy_pages", "limited"), fact("tun"))
    assert keys(found.problems) == ["tun"]
    assert keys(found.shown) == ["lock_iptables", "ssh", "lazy_pages", "tun"]


def test_doctor_has_no_problem_with_one_tracking_method() -> None:
    """The result of `tracker` depends on both methods."""
    found = diagnosis(fact("soft_dirty"), fact("write_protection", "ok"), fact("tracker", "ok"))
    assert (keys(found.shown), found.problems) == (["tracker"], ())


@pytest.mark.parametrize(
    ("version", "state"), [("4.2", "limited"), ("4.1.1", "limited"), ("4.2.1", "ok"), ("5.0", "ok")]
)
def test_doctor_reports_a_vulnerable_criu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, state: str
) -> None:
    """The preload library protects every CRIU, so doctor reports one only without the library."""
    found = Search(Criu(Path("/criu"), "PATH", version, "", locks_by_nftables=True), ())
    monkeypatch.setattr(library, "LIBRARY", Path(__file__))
    assert judge_criu(found).state == "ok"
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "none")
    judged = judge_criu(found)
    assert (judged.state, "CVE-2026-18107" in judged.consequence) == (state, state == "limited")
