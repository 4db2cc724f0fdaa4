"""Needs and blockers of a rehearsal, for the images of a real tree."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from ipaddress import IPv4Address

import pytest
from msgspec.structs import replace

from crckpt.causes import cause
from crckpt.images.regfile import RegularFile
from crckpt.images.sockets import Address, InetSocket, PacketSocket
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.preflight.restore.files import find_needed_files, find_needed_path
from crckpt.preflight.restore.host import FileState
from crckpt.preflight.restore.rehearsal import (
    find_needed_addresses,
    find_rehearsal_blockers,
    rehearsal_warnings,
    writable_bytes,
)

SIZE = 1000


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.9", ()),
        (str(IPv4Address(0)), ()),
        ("::", ()),
        ("::1", ()),
        ("224.0.0.251", ()),
        ("ff02::fb", ()),
        ("255.255.255.255", ()),
        ("10.1.2.3", ("10.1.2.3",)),
        ("::ffff:10.1.2.3", ("10.1.2.3",)),
        ("fd00::7", ("fd00::7",)),
    ],
)
def test_addresses_missing_on_a_loopback_interface_are_needed(
    tree: ImageTree, host: str, wanted: tuple[str, ...]
) -> None:
    """The addresses are those that a socket is bound or connected to."""
    (first, *_) = tree.inet_sockets
    here, there = Address("127.0.0.1", 1), Address(host, 2)
    for socket in (replace(first, source=here, destination=there), replace(first, source=there, destination=here)):
        assert find_needed_addresses(replace(tree, files=(socket,))) == wanted


def test_each_address_that_a_rehearsal_needs_is_listed_once(tree: ImageTree) -> None:
    (first, *_) = tree.inet_sockets
    sockets = [replace(first, source=Address(host, 1)) for host in ("10.0.0.2", "10.0.0.1", "10.0.0.2")]
    assert find_needed_addresses(replace(tree, files=tuple(sockets))) == ("10.0.0.1", "10.0.0.2")


def test_only_writable_files_are_counted(tree: ImageTree) -> None:
    now: dict[str, FileState | None] = {find_needed_path(file): there() for file in find_needed_files(tree)}
    before = writable_bytes(tree, now)
    (file, *_) = (
        one for one in tree.regular_files if one.flags & os.O_ACCMODE == os.O_RDONLY and find_needed_path(one)
    )
    other_files = [one for one in tree.files if not (isinstance(one, RegularFile) and one.path == file.path)]
    for flags, more in ((os.O_RDONLY, 0), (os.O_RDWR, SIZE), (os.O_WRONLY | os.O_APPEND, SIZE)):
        assert writable_bytes(replace(tree, files=(*other_files, replace(file, flags=flags))), now) == before + more
    assert before > 0


def test_tree_of_this_host_can_be_rehearsed(tree: ImageTree) -> None:
    assert list(find_rehearsal_blockers(tree, needs_terminal=False)) == []


@pytest.mark.parametrize("kind", ["mnt", "pid", "user"])
def test_own_namespaces_cannot_be_rehearsed(tree: ImageTree, kind: str) -> None:
    ids = tree.inventory.root_ids
    spaces = replace(ids.namespaces, **{kind: getattr(ids.namespaces, kind) + 1})
    other = replace(tree, inventory=replace(tree.inventory, root_ids=replace(ids, namespaces=spaces)))
    (found,) = find_rehearsal_blockers(other, needs_terminal=False)
    assert found.key == "namespace-rehearsed"
    assert f" {kind} namespace" in found.what


def test_interface_bound_socket_cannot_be_rehearsed(tree: ImageTree) -> None:
    def bound(interface: str) -> list[str]:
        (first, *_) = (file for file in tree.files if isinstance(file, InetSocket))
        other = replace(tree, files=(replace(first, interface=interface),))
        return [found.what for found in find_rehearsal_blockers(other, needs_terminal=False)]

    assert bound("") == bound("lo") == []
    (lines,) = bound("eth7")
    assert "eth7" in lines


def test_terminal_cannot_be_rehearsed(tree: ImageTree) -> None:
    (found,) = find_rehearsal_blockers(tree, needs_terminal=True)
    assert found.key == "terminal-rehearsed"


def test_rehearsal_reports_where_it_cuts_files() -> None:
    """The warning of a restore is replaced; other warnings stay."""
    findings = cause("file-rewound").finding(path="/a", size=1, now=2), cause("file-written").finding(path="/b")
    verdict = RestoreVerdict((), findings, (), needs_terminal=False)
    kept, warning = rehearsal_warnings(verdict)
    assert kept == findings[1]
    assert warning.key == "file-cut-rehearsed"
    assert "/a" in warning.what


def there() -> FileState:
    then = datetime(2026, 1, 2, tzinfo=UTC)
    return FileState(SIZE, 0o100644, then, then, "")


def test_interface_bound_packet_socket_cannot_be_rehearsed(tree: ImageTree) -> None:
    for number, keys in ((0, []), (1, []), (2, ["interface-rehearsed"])):
        other = replace(tree, files=(PacketSocket(999, "raw", 3, number, 0),))
        assert [found.key for found in find_rehearsal_blockers(other, needs_terminal=False)] == keys
