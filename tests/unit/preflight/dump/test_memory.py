"""Memory that CRIU does not save."""

from __future__ import annotations

from dump_plans import blocker_keys
from msgspec.structs import replace
from observations import PLAIN

from crckpt.host.proc.maps import UnsavableMap


def test_sealed_memory_is_not_a_blocker() -> None:
    assert blocker_keys(replace(PLAIN, unsavable_maps=(UnsavableMap(100, 0x1000, "", "sealed"),))) == []
