"""Whose symlinks a restore follows (trusted.c), for a program that opens, binds and removes."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from forbidden_calls import TRIED_FUNCTION

from crckpt.tracking.preload.library import RESTORE_LIBRARY

pytestmark = pytest.mark.skipif(not RESTORE_LIBRARY.exists(), reason="there was no C compiler")

NOBODY: Final = 65534

ACCESS_PROGRAM: Final = (
    TRIED_FUNCTION
    + """
import ctypes, json, os, socket, struct, sys
root = os.open("/", os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
def opened(path):
    os.close(os.open(path.lstrip("/"), os.O_RDWR, dir_fd=root))
def bound(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
        # As CRIU does, which asks libc.
        if libc.fchownat(-100, path.encode(), 65534, 65534, 0) or libc.fchmodat(-100, path.encode(), 0o640, 0):
            raise OSError(ctypes.get_errno(), "")
        with socket.socket(socket.AF_UNIX) as other:
            made.listen()
            other.connect(path)
def exchanged(path):
    # Between bind and chown the user of the directory puts one of root there.
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
        own, roots = os.path.dirname(path).encode(), f"{os.path.dirname(path)}-roots".encode()
        assert not libc.renameat2(-100, own, -100, roots, 2)
        failed = [libc.fchownat(-100, path.encode(), 65534, 65534, 0) and ctypes.get_errno()]
        failed.append(libc.fchmodat(-100, path.encode(), 0o666, 0) and ctypes.get_errno())
        assert not libc.renameat2(-100, own, -100, roots, 2)
        assert failed == [1, 1], failed
        if libc.fchownat(-100, path.encode(), 65534, 65534, 0) or libc.fchmodat(-100, path.encode(), 0o640, 0):
            raise OSError(ctypes.get_errno(), "")
def removed(path):
    if libc.unlinkat(-100, path.encode(), 0):
        raise OSError(ctypes.get_errno(), "")
def connected(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.connect(path)
if table := os.environ.get("CRCKPT_HOLDERS"):
    # Another process than the one that has loaded the library, which is a user's: without other groups.
    ready, note = os.pipe()
    if child := os.fork():
        with open(table, "r+b") as file:
            file.write(struct.pack("5I", child, 65534, 65534, 0, 0))
        os.write(note, b"x")
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.read(ready, 1)
print(json.dumps([tried(globals()[what], path) for what, path in json.loads(sys.argv[1])]))
"""
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of root's in one that all users can write to, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="crckpt-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_only_symlinks_of_root_in_directories_of_root_are_followed(place: Path) -> None:
    """The owner of the link, or of a directory on its path, could otherwise redirect CRIU."""
    for name in ("roots", "theirs", "shared"):
        (place / name).mkdir()
    (place / "shared").chmod(0o777)
    (place / "roots/file").touch()
    links = {"by-root": "roots", "by-user": "roots", "theirs/by-root": "../roots", "shared/by-root": "../roots"}
    for link, to in (
        *links.items(),
        ("twice", "by-root"),
        ("absolute", str(place / "by-root")),
        ("last", "roots/file"),
    ):
        (place / link).symlink_to(to)
    for name in ("by-user", "theirs"):
        os.chown(place / name, NOBODY, NOBODY, follow_symlinks=False)
    expected = {
        "roots/file": 0,
        "by-root/file": 0,
        "twice/file": 0,
        "absolute/file": 0,
        "last": 0,
        "roots/../by-root//./file": 0,
        "by-root/nothing": errno.ENOENT,
        "by-user/file": errno.ELOOP,
        "theirs/by-root/file": errno.ELOOP,
        "theirs/../by-root/file": errno.ELOOP,
        "shared/by-root/file": errno.ELOOP,
    }
    assert dict(zip(expected, _tried(*(("opened", place / name) for name in expected)), strict=True)) == expected


def test_nothing_is_opened_through_proc_pid(place: Path) -> None:
    """A link in /proc leads to a place that some process has chosen."""
    (place / "file").touch()
    own = f"/proc/{os.getpid()}"
    assert _tried(("opened", Path(f"{own}/root/{place}/file"))) == [errno.ELOOP]


def test_restored_sockets_are_created_with_the_rights_of_the_directorys_owner(place: Path) -> None:
    """Meanwhile CRIU has only the rights of the directory's owner."""
    for name in ("theirs", "roots", "closed"):
        (place / name).mkdir()
    (place / "by-root").symlink_to("roots")
    (place / "theirs/link").symlink_to("../roots")
    (place / "theirs/roots").mkdir()
    (place / "roots/thing").touch()
    os.chown(place / "theirs", NOBODY, NOBODY)
    tries = {
        ("bound", "roots/one"): 0,
        ("bound", "by-root/two"): 0,
        ("bound", "theirs/three"): 0,
        ("bound", "theirs/link/four"): errno.ELOOP,
        # The user could replace this directory by another one.
        ("bound", "theirs/roots/five"): errno.EACCES,
        ("removed", "theirs/link/thing"): errno.ELOOP,
        ("removed", "roots/one"): 0,
        ("removed", "theirs/three"): 0,
    }
    results = _tried(*((what, place / name) for what, name in tries))
    assert dict(zip(tries, results, strict=True)) == tries
    assert sorted(path.name for path in (place / "roots").iterdir()) == ["thing", "two"]
    two = (place / "roots/two").stat()
    assert (two.st_uid, two.st_mode & 0o7777) == (NOBODY, 0o640)


def test_only_the_socket_that_criu_bound_gets_an_owner(place: Path) -> None:
    """A socket of root's, in a directory that the user has exchanged since, stays root's."""
    own, roots = place / "s", place / "s-roots"
    for directory in (own, roots):
        directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(roots / "one"))
    (roots / "one").chmod(0o600)
    before = (roots / "one").stat()
    os.chown(own, NOBODY, NOBODY)
    assert _tried(("exchanged", own / "one")) == [0]
    after = (roots / "one").stat()
    assert (after.st_ino, after.st_uid, after.st_mode) == (before.st_ino, 0, before.st_mode)
    assert (own / "one").stat().st_uid == NOBODY


def test_program_of_a_user_connects_only_where_it_may(place: Path) -> None:
    """The program's user has put root's directory where the socket of its own server was."""
    (place / "s").mkdir()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as closed,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened,
    ):
        for listener, name, mode in (closed, "closed", 0o600), (opened, "open", 0o666):
            listener.bind(str(place / "s" / name))
            (place / "s" / name).chmod(mode)
        tries = (("connected", place / "s/closed"), ("connected", place / "s/open"))
        assert _tried(*tries, table=place / "holders") == [errno.EACCES, 0]
        # As a program of root.
        assert _tried(*tries) == [0, 0]


def test_program_of_a_user_removes_only_sockets_that_it_may_remove(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket of root's stays in a directory of root's that the user has moved, and every other file stays, too."""
    places = {"user": (NOBODY, 0o755), "user/roots": (0, 0o755), "shared": (0, 0o1777), "roots": (0, 0o755)}
    for name, (owner, mode) in places.items():
        (place / name).mkdir()
        (place / name).chmod(mode)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place / name / "s"))
        os.chown(place / name, owner, owner)
    (place / "user/file").touch()
    expected = {
        ("bound", "user/roots/s"): errno.EADDRINUSE,
        ("removed", "user/roots/s"): errno.EACCES,
        ("removed", "shared/s"): errno.EPERM,
        ("removed", "user/file"): errno.EPERM,
        ("bound", "user/s"): 0,
        ("removed", "user/s"): 0,
        # The program bound the socket as root and dropped its rights later. Only root can have put the socket there.
        ("bound", "roots/s"): 0,
    }
    results = _tried(*((what, place / name) for what, name in expected), table=place / "holders")
    assert dict(zip(expected, results, strict=True)) == expected
    assert _tried(("removed", place / "shared/s"), ("bound", place / "user/roots/s")) == [0, errno.EADDRINUSE]
    monkeypatch.chdir(place / "user/roots")
    assert _tried(("removed", Path("s"))) == [errno.EACCES]
    assert (place / "user/roots/s").is_socket()


def _tried(*tries: tuple[str, Path], table: Path | None = None) -> list[int]:
    """Run the call as a program of root or, with a file for the `table` of holders, as a program of NOBODY."""
    if table is not None:
        table.write_bytes(bytes(4096))
    holders = {} if table is None else {"CRCKPT_HOLDERS": str(table)}
    words = json.dumps([(what, str(path)) for what, path in tries])
    result = subprocess.run(
        [sys.executable, "-S", "-c", ACCESS_PROGRAM, words],
        env=os.environ | {"LD_PRELOAD": str(RESTORE_LIBRARY)} | holders,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[int] = json.loads(result.stdout)
    return found


EXCHANGING_PROGRAM: Final = """
import ctypes, sys
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2)
"""

CONNECTING_PROGRAM: Final = """
import socket, sys
reached = set()
for _ in range(20_000):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        try:
            made.connect(sys.argv[1])
            reached.add(made.getpeername())
        except OSError:
            pass
print(*sorted(reached))
"""


def test_socket_that_criu_connects_to_is_the_one_that_it_found(place: Path) -> None:
    """The directory is replaced by a link in a loop: a listener of root would take the client for root."""
    (place / "roots").mkdir()
    (place / "theirs/real").mkdir(parents=True)
    (place / "theirs/link").symlink_to(place / "roots")
    for path in (place / "theirs", place / "theirs/real"):
        os.chown(path, NOBODY, NOBODY)
    theirs, roots = f"{place}/theirs/real/s", f"{place}/roots/s"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as two,
    ):
        one.bind(theirs)
        two.bind(roots)
        Path(roots).chmod(0o666)
        os.chown(theirs, NOBODY, NOBODY)
        words = [sys.executable, "-S", "-c", EXCHANGING_PROGRAM, str(place / "theirs/real"), str(place / "theirs/link")]
        with subprocess.Popen(words) as exchanges:
            try:
                words = [sys.executable, "-S", "-c", CONNECTING_PROGRAM, theirs]
                environment = os.environ | {"LD_PRELOAD": str(RESTORE_LIBRARY)}
                result = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
            finally:
                exchanges.kill()
    assert result.stdout.split() == [theirs]
