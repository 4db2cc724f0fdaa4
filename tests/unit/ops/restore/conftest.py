"""A live process in place of a restored tree."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from checkout import TESTS
from msgspec.structs import replace

from crckpt.images.tree import ImageTree, read_tree

IMAGES = TESTS / "data/images/tree"
NAMES = frozenset(path.name for path in IMAGES.iterdir())


@pytest.fixture
def tree() -> Iterator[ImageTree]:
    """The root of the test images alone, with the PID of a process that sleeps."""
    recorded = read_tree(lambda name: (IMAGES / name).read_bytes(), NAMES)
    root = recorded.root
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            alone = replace(root, pid=process.pid, threads=(replace(root.threads[0], tid=process.pid),))
            yield replace(recorded, processes=(alone,))
        finally:
            process.kill()
