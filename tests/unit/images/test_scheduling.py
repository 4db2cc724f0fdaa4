"""CRIU gets threads with deadline scheduling with the default policy; nothing else changes."""

import pytest

from crckpt.images import magics
from crckpt.images.core import read_core
from crckpt.images.framing import Image, Record, write_image
from crckpt.images.repairs import drop_deadline
from crckpt.images.wire import BYTES, FIXED64, VARINT, encode


def _core(policy: int) -> bytes:
    credentials = encode(((1, VARINT, 0), (13, VARINT, 0), (14, VARINT, 4), (14, VARINT, 6)))
    thread = encode(((1, VARINT, 32), (2, VARINT, 24), (4, VARINT, policy), (10, BYTES, credentials), (6, FIXED64, 6)))
    return write_image(Image(magics.CORE, (Record(encode(((1, VARINT, 1), (5, BYTES, thread)))),)))


def test_deadline_scheduling_policy_in_an_image_is_replaced() -> None:
    """All other fields of the image are unchanged, including repeated ones."""
    assert drop_deadline(_core(6)) == _core(0)
    credentials = read_core(drop_deadline(_core(6))).credentials
    assert credentials is not None
    assert credentials.groups == (4, 6)


@pytest.mark.parametrize("policy", [0, 1, 2, 3, 5])
def test_other_scheduling_policies_in_an_image_are_unchanged(policy: int) -> None:
    """The edited image is the same byte for byte."""
    assert drop_deadline(_core(policy)) == _core(policy)
