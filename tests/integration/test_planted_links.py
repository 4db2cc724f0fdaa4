"""Symlinks that a user puts in the place of a directory of the tree before root restores it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped_trees import JOB, stopped
from trees import NOBODY, PYTHON, Case, Tree

from crckpt.tracking.preload.library import RESTORE_LIBRARY

pytestmark = pytest.mark.skipif(not RESTORE_LIBRARY.exists(), reason="there was no C compiler")

AS_NOBODY: Final = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
KINDS: Final = ("file", "directory", "working-directory", "socket")


@pytest.mark.parametrize("kind", KINDS)
def test_symlink_of_a_user_to_a_file_of_root_is_not_followed(crckpt: Crckpt, kind: str) -> None:
    """The link affects files to read, write, remove or own. Nothing is restored."""
    argv = (*AS_NOBODY, PYTHON, "{workdir}/programs/planted.py", "{workdir}", kind)
    with stopped(crckpt, Case(kind, argv, user=NOBODY)) as tree, _thing_of_roots(kind, tree) as before:
        places = tree.workdir / "places"
        places.rename(tree.workdir / "moved")
        places.symlink_to(before.parent)
        os.chown(places, NOBODY, NOBODY, follow_symlinks=False)
        was = _looked_at(before)
        dry, done = (crckpt.run("restore", JOB, words, status=24).err for words in ("--dry-run", "--detach"))
        assert dry == done
        result = crckpt.run("restore", JOB, "--detach", "--no-preflight", status=23)
        for each in (dry, result.err):
            assert "a symlink leads to " in each
        assert _looked_at(before) == was


@pytest.mark.parametrize("kind", KINDS)
def test_symlink_that_root_made_is_followed_by_a_restore(crckpt: Crckpt, kind: str) -> None:
    """A directory that root has moved elsewhere is restored there."""
    with stopped(crckpt, Case(kind, (PYTHON, "{programs}/planted.py", "{workdir}", kind))) as tree:
        before = tree.counters()
        (tree.workdir / "places").rename(tree.workdir / "moved")
        (tree.workdir / "places").symlink_to("moved")
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@contextmanager
def _thing_of_roots(kind: str, tree: Tree) -> Iterator[Path]:
    """A file of the same kind as that of the tree, in a directory that the user cannot change."""
    roots = tree.workdir / "roots"
    roots.mkdir()
    thing, theirs = roots / "thing", tree.workdir / "places/thing"
    if kind == "file":
        thing.write_bytes(bytes(theirs.stat().st_size))
        thing.chmod(0o600)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(thing))
            yield thing
            return
    else:
        thing.mkdir()
        thing.chmod(theirs.stat().st_mode & 0o7777)
    yield thing


def _looked_at(thing: Path) -> tuple[object, ...]:
    status = thing.lstat()
    content = thing.read_bytes() if thing.is_file() else b""
    return status.st_ino, status.st_uid, status.st_mode, status.st_ctime_ns, content, [*thing.parent.iterdir()]
