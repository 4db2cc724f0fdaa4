"""What doctor makes of the facts about a host: what prevents everything comes first, and fixes are tried one by one."""

from __future__ import annotations

from crckpt.host.probes.outcome import Fact
from crckpt.ops.doctor import Diagnosis


def fact(key: str, state: str = "missing", fix: str = "") -> Fact:
    return Fact(key, state, f"{key} is {state}", "", fix, safe=bool(fix))


def diagnosis(*facts: Fact) -> Diagnosis:
    return Diagnosis(facts, ())


def keys(facts: tuple[Fact, ...]) -> list[str]:
    return [each.key for each in facts]


def test_what_prevents_every_checkpoint_comes_first() -> None:
    limited = (fact("memory", "limited"), fact("capabilities", "limited"))
    found = diagnosis(*limited, fact("tun"), fact("criu"), fact("x", "ok"))
    assert keys(found.obstacles) == ["criu"]
    assert not found.able
    assert keys(found.problems) == ["criu", "memory", "capabilities", "tun"]
    assert diagnosis(fact("tun")).able


def test_what_crckpt_does_not_use_is_no_problem() -> None:
    found = diagnosis(fact("lock_iptables"), fact("ssh"), fact("lazy_pages", "limited"), fact("tun"))
    assert keys(found.problems) == ["tun"]
    assert keys(found.shown) == ["lock_iptables", "ssh", "lazy_pages", "tun"]


def test_one_way_to_track_is_enough() -> None:
    """`tracker` says what follows from both."""
    found = diagnosis(fact("soft_dirty"), fact("write_protection", "ok"), fact("tracker", "ok"))
    assert (keys(found.shown), found.problems) == (["tracker"], ())
