"""The kinds of resources that a tree may hold, each with the test that restores one."""

from __future__ import annotations

from typing import Final

_TREES: Final = "tests/integration/test_trees.py::test_stopped_tree_is_restored"
_NAMESPACES: Final = "tests/integration/test_namespaces.py"
_TERMINALS: Final = "tests/integration/test_own_terminals.py"

_KINDS_BY_TEST: Final = {
    f"{_TREES}[growing-log]": ("regular file",),
    f"{_TREES}[deleted-files]": ("deleted file", "deleted directory", "deleted named pipe"),
    f"{_TREES}[rarities]": (
        *("directory", "file of /proc", "file opened with O_PATH", "fanotify", "pidfd", "descriptor of a namespace"),
        # null, zero, full, random, urandom
        *("device 1:3", "device 1:5", "device 1:7", "device 1:8", "device 1:9"),
        *("socket AF_INET SOCK_DGRAM", "socket AF_INET6 SOCK_DGRAM", "socket AF_INET SOCK_RAW"),
        *("socket AF_INET6 SOCK_RAW", "socket AF_NETLINK SOCK_RAW", "socket AF_PACKET SOCK_RAW"),
        # 10: SOCK_PACKET
        *("socket AF_PACKET SOCK_DGRAM", "socket AF_PACKET 10"),
        *("filter of system calls (seccomp)", "process that is stopped", "process that has ended and was not reaped"),
    ),
    f"{_TREES}[pipes]": ("pipe", "named pipe", "socket AF_UNIX SOCK_SEQPACKET"),
    f"{_TREES}[maps]": ("memfd",),
    f"{_TREES}[events]": ("eventfd", "eventpoll", "timerfd", "signalfd", "inotify"),
    f"{_TREES}[tmux]": ("pseudo terminal, master side", "pseudo terminal"),
    f"{_TREES}[unix-sockets]": ("socket AF_UNIX SOCK_STREAM", "socket AF_UNIX SOCK_DGRAM"),
    f"{_TREES}[tcp-pair]": ("socket AF_INET SOCK_STREAM",),
    f"{_TREES}[tcp-listen]": ("socket AF_INET6 SOCK_STREAM",),
    f"{_TREES}[sysv-ipc]": ("System V shared memory", "ipc namespace"),
    f"{_TREES}[apart]": ("uts namespace", "time namespace"),
    f"{_TERMINALS}::test_program_uses_its_own_terminal_after_a_restore": ("terminal of the session",),
    f"{_TERMINALS}::test_console_of_the_host_is_opened_again_by_its_name": ("console", "virtual console"),
    "tests/integration/test_own_network.py::test_listening_tree_in_its_own_network_is_restored": ("net namespace",),
    f"{_NAMESPACES}::test_nested_network_namespace_is_restored": ("net namespace inside the tree's own",),
    "tests/integration/test_attributes.py::test_dump_reports_the_loss_of_a_cgroup_namespace": ("cgroup namespace",),
    "tests/lab/test_systemd_unit.py::test_tests_of_systemd_units_pass_in_the_systemd_lab": ("mnt namespace",),
    "tests/integration/test_new_pid_namespace.py::test_tree_from_a_pid_namespace_is_restored": ("pid namespace",),
}
TESTS: Final = {kind: test for test, kinds in _KINDS_BY_TEST.items() for kind in kinds}
"""For each kind, the test that dumps a tree with one, ends it, restores it, and compares."""
