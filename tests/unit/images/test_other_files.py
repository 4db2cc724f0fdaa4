"""Event sources, and other files without a name."""

from __future__ import annotations

import pytest
from image_trees import by_title

from crckpt.images import other_files
from crckpt.images.tree import ImageTree


@pytest.mark.parametrize("kind", ["eventfd", "timerfd", "signalfd"])
def test_eventfd_timerfd_and_signalfd_are_listed_with_their_kind(tree: ImageTree, kind: str) -> None:
    assert [entry.file.kind for entry in tree.root.descriptors].count(kind) == 1


def test_epoll_inotify_and_pidfd_are_read(tree: ImageTree) -> None:
    (event,) = (entry.fd for entry in tree.root.descriptors if entry.file.kind == "eventfd")
    (epoll,) = (file for file in tree.files if isinstance(file, other_files.EventPoll))
    assert epoll.watched == (event,)
    assert "inotify on 1" in [file.title for file in tree.files]
    pidfd = by_title(tree, f"pidfd of {tree.root.pid}")
    assert isinstance(pidfd, other_files.PidFd)
    assert pidfd.pid == tree.root.pid
