"""Attributes are set on a live process in place of a restored tree; what the kernel refuses is reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crckpt.errors import RestoreFailed
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.attributes import plan_attributes
from crckpt.preflight.attribute_record import AttributeRecord, AttributeValue, ProcessRecord

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter any process")


def record(
    tree: ImageTree, of_thread: dict[str, AttributeValue], of_process: dict[str, AttributeValue] | None = None
) -> AttributeRecord:
    pid = tree.root.pid
    return AttributeRecord((0, 1), (ProcessRecord(pid, {pid: of_thread}, of_process or {}),))


def test_lost_protection_fails_the_restore(tree: ImageTree) -> None:
    """With the user's permission, the loss is a warning."""
    wanted = record(tree, {}, {"no_written_code": (64,)})
    with pytest.raises(RestoreFailed, match=r"PR_SET_MDWE.*: Invalid argument"):
        plan_attributes(wanted, tree, allow_weaker=False).set_all(None)
    (warning,) = plan_attributes(wanted, tree, allow_weaker=True).set_all(None)
    assert warning.key == "protection-lost"


def test_other_lost_attribute_is_a_warning(tree: ImageTree) -> None:
    """The restore continues and sets all other attributes."""
    wanted = record(tree, {"timer_slack": (-5,), "personality": (0x40000,), "deadline": (1, 2)})
    found = plan_attributes(wanted, tree, allow_weaker=False).set_all(None)
    assert sorted(finding.what.partition(" of ")[0] for finding in found) == [
        "crckpt cannot restore the deadline scheduling",
        "crckpt cannot restore the timer slack",
    ]
    assert Path(f"/proc/{tree.root.pid}/personality").read_text() == "00040000\n"


def test_no_attribute_is_set_from_a_checkpoint_without_a_record(tree: ImageTree) -> None:
    assert plan_attributes(None, tree, allow_weaker=False).set_all(None) == ()
