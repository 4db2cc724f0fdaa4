"""The kinds of resources of a tree, and those that no test restores."""

from __future__ import annotations

import os
import socket
import stat

import pytest
from checkout import PROJECT
from dump_plans import CHILD, DELETED_FILE, FILE, READS, TWO_PROCESSES, in_namespaces, with_files, with_tree
from kind_tests import TESTS
from msgspec.structs import replace
from observations import ROOT

from crckpt.host.observe.socket_kinds import SocketKind
from crckpt.host.proc import Descriptor
from crckpt.host.proc.maps import UnsavableMap
from crckpt.preflight.dump.tested_kinds import TESTED, find_kinds, find_untested


def device(major: int, minor: int) -> Descriptor:
    return replace(FILE, target="/dev/x", mode=stat.S_IFCHR, device=os.makedev(major, minor))


@pytest.mark.parametrize(
    ("held", "kind"),
    [
        (FILE, "regular file"),
        (DELETED_FILE, "deleted file"),
        (READS, "pipe"),
        (replace(FILE, mode=stat.S_IFDIR), "directory"),
        (replace(FILE, mode=stat.S_IFIFO), "named pipe"),
        (replace(FILE, flags=os.O_PATH), "file opened with O_PATH"),
        (replace(FILE, target="/proc/7/maps"), "file of /proc"),
        (replace(FILE, target="/sys/x", mode=stat.S_IFDIR), "directory of /sys"),
        (replace(FILE, target="/memfd:x (deleted)"), "memfd"),
        (replace(FILE, target="anon_inode:[eventfd]", mode=0), "eventfd"),
        (replace(FILE, target="net:[4]", is_namespace=True), "descriptor of a namespace"),
        (replace(FILE, mode=0), "unreadable file"),
        (replace(FILE, mode=stat.S_IFBLK), "file of mode 60000"),
        (device(1, 3), "device 1:3"),
        (device(5, 0), "terminal of the session"),
        (device(4, 63), "virtual console"),
        (device(4, 64), "device 4:64"),
        (device(136, 7), "pseudo terminal"),
    ],
)
def test_each_kind_of_descriptor_in_a_tree_is_found(held: Descriptor, kind: str) -> None:
    assert find_kinds(with_files(held)) == {kind: f"fd 3 of process 100, {held.target}"}


def test_sockets_have_readable_names() -> None:
    kinds = (SocketKind(100, 3, socket.AF_INET6, socket.SOCK_STREAM, 0), SocketKind(101, 4, 250, 77, 0))
    held = replace(with_files(replace(FILE, target="socket:[7]")), sockets=kinds)
    assert find_kinds(held) == {
        "socket AF_INET6 SOCK_STREAM": "fd 3 of process 100",
        "socket 250 77": "fd 4 of process 101",
    }
    assert find_untested(held) == {"socket 250 77": "fd 4 of process 101"}


def test_each_state_of_a_process_in_a_tree_is_found() -> None:
    held = with_tree(replace(ROOT, state="stopped", seccomp=1), replace(CHILD, state="zombie", seccomp=2))
    kinds = find_kinds(replace(held, descriptors=()))
    assert kinds == {
        "process that is stopped": "process 100",
        "strict limit of system calls (seccomp)": "process 100",
        "process that has ended and was not reaped": "process 101",
    }
    assert find_untested(replace(held, descriptors=())) == {"strict limit of system calls (seccomp)": "process 100"}


def test_namespaces_inside_the_tree_are_found() -> None:
    child = in_namespaces(CHILD, net=99, uts=88)
    held = replace(with_tree(in_namespaces(ROOT, net=97), child), descriptors=())
    assert find_kinds(held) == {
        "net namespace": "process 100",
        "net namespace inside the tree's own": "process 101",
        "uts namespace inside the tree": "process 101",
    }
    assert find_untested(held) == {"uts namespace inside the tree": "process 101"}


def test_each_kind_is_reported_with_its_first_example() -> None:
    held = with_files(FILE, replace(FILE, fd=4, target="/other"))
    assert find_kinds(held) == {"regular file": "fd 3 of process 100, /srv/data"}
    mapped = replace(TWO_PROCESSES, descriptors=(), unsavable_maps=(UnsavableMap(101, 0, "/SYSV00 (deleted)", "sysv"),))
    assert find_kinds(mapped) == {"System V shared memory": "process 101"}


@pytest.mark.parametrize("test", sorted({test.partition("[")[0] for test in TESTS.values()}))
def test_test_named_for_each_kind_exists(test: str) -> None:
    path, _, name = test.partition("::")
    if path.startswith("tests/lab/"):
        pytest.skip("it runs in the lab")
    assert f"def {name}(" in (PROJECT / path).read_text()


def test_each_kind_that_counts_as_tested_names_its_test() -> None:
    assert {*TESTS} == TESTED
