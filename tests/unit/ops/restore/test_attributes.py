"""Attributes are set on a live process in place of a restored tree; what the kernel refuses is reported."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from places import TESTS

from crckpt.errors import RestoreFailed
from crckpt.images.tree import ImageTree, read_tree
from crckpt.ops.restore.attributes import plan_attributes
from crckpt.preflight.attribute_record import AttributeRecord, AttributeValue, ProcessRecord

IMAGES = TESTS / "data/images/tree"
NAMES = frozenset(path.name for path in IMAGES.iterdir())

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter any process")


@pytest.fixture
def tree() -> Iterator[ImageTree]:
    """The root of the test images alone, with the PID of a process that sleeps."""
    root = read_tree(lambda name: (IMAGES / name).read_bytes(), NAMES).root
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            alone = replace(root, pid=process.pid, threads=(replace(root.threads[0], tid=process.pid),))
            whole = read_tree(lambda name: (IMAGES / name).read_bytes(), NAMES)
            yield replace(whole, processes=(alone,))
        finally:
            process.kill()


def record(
    tree: ImageTree, of_thread: dict[str, AttributeValue], of_process: dict[str, AttributeValue] | None = None
) -> AttributeRecord:
    pid = tree.root.pid
    return AttributeRecord((0, 1), (ProcessRecord(pid, {pid: of_thread}, of_process or {}),))


def test_a_lost_protection_fails_the_restore(tree: ImageTree) -> None:
    """If the user allows it, it is a warning."""
    wanted = record(tree, {}, {"no_written_code": (64,)})
    with pytest.raises(RestoreFailed, match=r"PR_SET_MDWE.* again: Invalid argument"):
        plan_attributes(wanted, tree, allow_weaker=False).set_all(None)
    (said,) = plan_attributes(wanted, tree, allow_weaker=True).set_all(None)
    assert said.key == "protection-lost"


def test_another_lost_attribute_is_a_warning(tree: ImageTree) -> None:
    """All other attributes are set."""
    wanted = record(tree, {"timer_slack": (-5,), "personality": (0x40000,), "deadline": (1, 2)})
    found = plan_attributes(wanted, tree, allow_weaker=False).set_all(None)
    assert sorted(finding.what.partition(" of ")[0] for finding in found) == [
        "crckpt cannot set the deadline scheduling",
        "crckpt cannot set the timer slack",
    ]
    assert Path(f"/proc/{tree.root.pid}/personality").read_text() == "00040000\n"


def test_without_a_record_nothing_is_set(tree: ImageTree) -> None:
    assert plan_attributes(None, tree, allow_weaker=False).set_all(None) == ()
