"""A restore with default choices, and a host that has not changed since the dump."""

from __future__ import annotations

import stat
from datetime import timedelta

import pytest
from restore_plans import CHANGED_AFTER, CREATED, LOG, RESOURCES

from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.files import find_needed_files, find_needed_path
from crckpt.preflight.restore.host import FileState, HostState, PlannedRestore


@pytest.fixture
def planned_restore(tree: ImageTree) -> PlannedRestore:
    """A restore of the tree with default choices; its log had 11 bytes."""
    return PlannedRestore(
        tree=tree,
        created=CREATED,
        cpu_features=("avx2", "sse2"),
        keeps_connections=False,
        append_sizes={LOG: 11},
        grown="refuse",
        new_pid_namespace=False,
        has_terminal=False,
        crius=("4.2.1", "4.2.1"),
    )


@pytest.fixture
def host(tree: ImageTree) -> HostState:
    """A host that has not changed since the dump."""
    return HostState(
        owners=(),
        files={
            find_needed_path(file): FileState(
                size=file.size if file.size is not None else 11,
                mode=file.mode if file.mode is not None else stat.S_IFREG | 0o644,
                written=CREATED - timedelta(hours=1),
                changed=CREATED + CHANGED_AFTER,
                build_id=file.build_id,
            )
            for file in find_needed_files(tree)
        },
        refused={},
        resources=RESOURCES,
    )
