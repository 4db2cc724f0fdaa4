"""Credentials in core-TID.img, and which of them a thread did not have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from recorded_images import IMAGES, RECORDED

from crckpt.images.core import CAPABILITIES, Rights, excess_rights, read_rights

PLAIN = Rights((33, 33, 33, 33), (33, 33, 33, 33), frozenset({4}), (0, 0b110, 0b110, 0b111, 0), confined=True)


def test_thread_of_root_has_all_capabilities_of_the_kernel() -> None:
    rights = read_rights(IMAGES[f"core-{RECORDED.root.pid}.img"])
    assert rights is not None
    assert (rights.uids, rights.gids, rights.confined) == ((0,) * 4, (0,) * 4, False)
    sets = dict(zip(CAPABILITIES, rights.capabilities, strict=True))
    assert sets["CapEff"] == sets["CapPrm"] == sets["CapBnd"]
    assert sets["CapEff"].bit_length() == 41
    assert (sets["CapInh"], sets["CapAmb"]) == (0, 0)


def test_image_of_a_zombie_has_no_credentials() -> None:
    (zombie,) = (process.pid for process in RECORDED.processes if process.memory is None)
    assert read_rights(IMAGES[f"core-{zombie}.img"]) is None


@pytest.mark.parametrize(
    ("saved", "excess"),
    [
        (PLAIN, []),
        (replace(PLAIN, groups=frozenset()), []),
        (replace(PLAIN, capabilities=(0, 0b100, 0, 0b111, 0)), []),
        (replace(PLAIN, uids=(33, 0, 33, 33)), ["user 0"]),
        (replace(PLAIN, gids=(33, 7, 33, 33)), ["group 7"]),
        (replace(PLAIN, groups=frozenset({4, 27})), ["group 33"]),
        (replace(PLAIN, capabilities=(0, 0b110, 0b110, 0b111, 0b1)), ["capabilities"]),
        (replace(PLAIN, confined=False), ["programs with more rights (no_new_privs)"]),
    ],
)
def test_rights_that_an_image_adds_to_those_of_the_thread_are_listed(saved: Rights, excess: list[str]) -> None:
    assert list(excess_rights(saved, PLAIN)) == excess
