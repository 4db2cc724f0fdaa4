"""Open files and sockets in words, as `show` and `diff` have them."""

from __future__ import annotations

import os
import stat

import pytest
from msgspec.structs import replace
from recorded_images import RECORDED

from crckpt.images.other_files import Fifo
from crckpt.images.regfile import RegularFile
from crckpt.images.sockets import NetlinkSocket, UnixSocket
from crckpt.images.tree import OpenDescriptor
from crckpt.ops.inspect.descriptors import Holder, OpenFiles, file_section, is_socket, open_files, socket_section

FILE = RegularFile(id=7, path="/srv/data", flags=0, pos=42, size=100, mode=0o100644, build_id="", external=False)
SOCKET = UnixSocket(
    id=8,
    inode=55,
    type="stream",
    state="established",
    name_bytes=b"/run/x",
    directory="",
    peer=66,
    flags=0,
    backlog=0,
    external=False,
    deleted=False,
)
NO_FILES = OpenFiles({}, {})


def described(file: RegularFile | Fifo, *others: RegularFile) -> tuple[str, tuple[str, ...]]:
    """Access and flags."""
    section = file_section(100, OpenDescriptor(3, file, close_on_exec=True), OpenFiles({o.id: o for o in others}, {}))
    assert (section.pid, section.fd, section.close_on_exec) == (100, 3, True)
    return section.access, section.flags


@pytest.mark.parametrize(
    ("flags", "access", "words"),
    [
        (os.O_RDONLY, "r", ()),
        (os.O_WRONLY | os.O_APPEND, "w", ("append",)),
        (os.O_RDWR | os.O_NONBLOCK, "rw", ("nonblock",)),
        (os.O_RDONLY | os.O_SYNC, "r", ("sync",)),
        (os.O_RDONLY | os.O_DSYNC, "r", ("sync",)),
        (os.O_RDONLY | os.O_DIRECTORY, "r", ("directory",)),
        (os.O_RDWR | os.O_TMPFILE | os.O_APPEND, "rw", ("append",)),
        (os.O_PATH, "r", ("path",)),
    ],
)
def test_access_and_flags_of_a_file_are_described(flags: int, access: str, words: tuple[str, ...]) -> None:
    assert described(replace(FILE, flags=flags)) == (access, words)
    # The images have the flags of a named pipe in another file.
    assert described(Fifo(9, 77, FILE.id, "/run/fifo"), replace(FILE, flags=flags)) == (access, words)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (stat.S_IFREG, "file"),
        (stat.S_IFDIR, "directory"),
        (stat.S_IFCHR, "character device"),
        (stat.S_IFBLK, "block device"),
        (None, "file"),
    ],
)
def test_file_mode_gives_the_kind_of_a_file(mode: int | None, kind: str) -> None:
    section = file_section(1, OpenDescriptor(3, replace(FILE, mode=mode), close_on_exec=False), NO_FILES)
    assert (section.kind, section.path, section.offset, section.size) == (kind, "/srv/data", 42, 100)
    assert not section.deleted


def test_deleted_files_have_the_size_of_their_content() -> None:
    """The recorded program has three deleted files: a small one, a log, and a large one with holes."""
    files = open_files(RECORDED)
    sections = [file_section(1, found, files) for found in RECORDED.root.descriptors if not is_socket(found.file)]
    deleted = {section.path.rpartition("/")[2]: section.size for section in sections if section.deleted}
    assert {name: deleted.get(name) for name in ("small", "gone.log", "large")} == {
        "small": 1000,
        "gone.log": 77,
        "large": 8 << 20,
    }


@pytest.mark.parametrize(
    ("names", "remote"), [({66: "@peer"}, "@peer"), ({66: ""}, "#66"), ({}, "#66"), ({55: "/run/x"}, "#66")]
)
def test_unix_socket_names_its_peer(names: dict[int, str], remote: str) -> None:
    section = socket_section(SOCKET, (Holder(1, 2),), OpenFiles({}, names))
    assert section is not None
    assert (section.local, section.remote, section.holders) == ("/run/x", remote, (Holder(1, 2),))


def test_unnamed_socket_is_shown_by_its_inode() -> None:
    section = socket_section(replace(SOCKET, name_bytes=b"", peer=0, deleted=True), (), NO_FILES)
    assert section is not None
    assert (section.local, section.remote, section.deleted) == ("#55", "", True)


def test_every_open_file_is_shown_either_as_file_or_as_socket() -> None:
    files = open_files(RECORDED)
    for file in files.by_id.values():
        assert (socket_section(file, (), files) is not None) == is_socket(file)
    kinds = {socket.family for file in files.by_id.values() if (socket := socket_section(file, (), files))}
    assert {"inet", "unix"} <= kinds
    assert any(isinstance(file, NetlinkSocket) for file in files.by_id.values()) == ("netlink" in kinds)
