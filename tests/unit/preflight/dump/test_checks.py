"""Blockers, warnings and CRIU options of dumps, for trees written by hand."""

from __future__ import annotations

import os
import socket
import stat
from typing import Literal

import observed
import pytest
from msgspec.structs import replace
from observed import NAMESPACES, ROOT

from crckpt.causes import cause
from crckpt.host.namespaces.foreign import ForeignNamespace
from crckpt.host.observe.socket_kinds import SocketKind
from crckpt.host.observe.sockets import Connection
from crckpt.host.observe.tasks import RESTARTED, WaitingThread
from crckpt.host.observe.tree import Observed, OutsideEnd
from crckpt.host.proc import Descriptor, Process, Tree
from crckpt.model import MEBIBYTE, DumpOptions
from crckpt.preflight.dump.checks import UNCONDITIONAL, DumpPlan, plan_dump
from crckpt.preflight.dump.files import deleted_bytes
from crckpt.preflight.dump.tasks import root_refusal

ALL_CAPABILITIES = frozenset(range(41))
CAP_SYS_RESOURCE = 24
CHILD = replace(ROOT, pid=101, ppid=100, comm="worker", threads=(101,), ns_pids=(101,))
FILE = Descriptor(
    pid=100,
    fd=3,
    target="/srv/data",
    mode=stat.S_IFREG | 0o644,
    size=10,
    links=1,
    flags=os.O_RDWR,
    pos=0,
    info="pos:\t0\n",
)
GONE = replace(FILE, target="/srv/gone (deleted)", links=0)
READS, WRITES = (
    replace(FILE, target="pipe:[55]", mode=stat.S_IFIFO, flags=flags) for flags in (os.O_RDONLY, os.O_WRONLY)
)
TERMINAL = replace(FILE, fd=0, target="/dev/pts/3", mode=stat.S_IFCHR)
CONNECTION = Connection(100, 7, "127.0.0.1:80", "127.0.0.1:4000", "ESTABLISHED")
PLAIN = replace(observed.PLAIN, tree=Tree(ROOT, (ROOT, CHILD)), descriptors=(FILE,))


def planned(
    observation: Observed, tcp: Literal["keep", "close"] | None = None, *, stop: bool = False, nftables: bool = True
) -> DumpPlan:
    return plan_dump(observation, tcp, stop=stop, locks_by_nftables=nftables, names={900: "gdb", 901: "criu"})


def with_files(*descriptors: Descriptor) -> Observed:
    return replace(PLAIN, descriptors=descriptors)


def with_tree(root: Process, *others: Process) -> Observed:
    return replace(PLAIN, tree=Tree(root, (root, *others)))


def in_namespaces(process: Process, **inodes: int) -> Process:
    return replace(process, namespaces=tuple((kind, inodes.get(kind, inode)) for kind, inode in NAMESPACES))


def as_uid(process: Process, real: int, *others: int) -> Process:
    """Run the process as this user; `others`: the effective and saved ids if they differ."""
    ids = (real, *(others or (real, real)), real)
    return replace(process, uids=ids, gids=ids)


def keys(findings: object) -> list[str]:
    assert isinstance(findings, tuple)
    return [finding.key for finding in findings]


def why(found: DumpPlan, option: str) -> str:
    (reason,) = (reason.why for reason in found.reasons if reason.option == option)
    return reason


def test_a_plain_tree_needs_no_option() -> None:
    assert planned(PLAIN) == DumpPlan(DumpOptions(), (), (), (), (), None)
    assert planned(PLAIN, "keep").options == DumpOptions(), "no connection, no option"


@pytest.mark.parametrize(
    ("process", "pid", "key"),
    [
        (None, 100, "gone"),
        (replace(ROOT, pid=1), 1, "init"),
        (replace(ROOT, is_kernel_thread=True), 100, "kernel-thread"),
        (replace(ROOT, pid=50), 50, "ourselves"),
        (replace(ROOT, pid=40), 40, "ancestor"),
        (replace(ROOT, state="zombie"), 100, "zombie"),
    ],
)
def test_refused_roots(process: Process | None, pid: int, key: str) -> None:
    found = root_refusal(process, pid, 50, (40, 1))
    assert found is not None
    assert found.key == key
    assert str(pid) in found.what
    assert found.remedy
    assert "?" not in str(found)


@pytest.mark.parametrize("state", ["sleeping", "running", "stopped", "traced", "uninterruptible"])
def test_accepted_roots(state: str) -> None:
    assert root_refusal(replace(ROOT, state=state), 100, 50, (40, 1)) is None


def test_connections_need_a_choice() -> None:
    observation = replace(PLAIN, connections=(CONNECTION, replace(CONNECTION, fd=8)))
    undecided = planned(observation)
    assert keys(undecided.blockers) == ["tcp", "tcp"]
    assert undecided.blockers[0].what == (
        "PID 100 has fd 7 connected over TCP: 127.0.0.1:80 -> 127.0.0.1:4000 (ESTABLISHED)"
    )
    assert undecided.options.tcp is None
    keep, close = planned(observation, "keep"), planned(observation, "close")
    assert (keep.options.tcp, keep.blockers, why(keep, "--tcp-established")) == ("keep", (), "2 TCP connections")
    assert (close.options.tcp, close.blockers, why(close, "--tcp-close")) == ("close", (), "2 TCP connections")


def test_bytes_of_deleted_files() -> None:
    """Each file counts once. Mapped files in memory count as memory."""
    taken = replace(GONE, size=8 << 30, allocated=MEBIBYTE)
    observation = with_files(taken, replace(taken, fd=taken.fd + 1), replace(taken, target="/y (deleted)"), FILE)
    assert deleted_bytes(observation, lambda _: True) == 2 * MEBIBYTE
    mapped = replace(observation, deleted_maps=((taken.target, 5, 0),))
    assert deleted_bytes(mapped, lambda _: True) == MEBIBYTE
    assert deleted_bytes(mapped, lambda _: False) == 2 * MEBIBYTE
    assert deleted_bytes(with_files(replace(taken, links=1)), lambda _: True) == 0


def test_the_choice_holds_for_later_connections() -> None:
    """A connection may be made before the freeze: then CRIU must know what to do."""
    listening = replace(PLAIN, sockets=(SocketKind(100, 3, socket.AF_INET6, socket.SOCK_STREAM, 0),))
    close, keep = planned(PLAIN, "close"), planned(listening, "keep")
    assert (close.options.tcp, why(close, "--tcp-close")) == ("close", "a TCP connection may be made before the freeze")
    assert (keep.options.tcp, why(keep, "--tcp-established")) == (
        "keep",
        "a TCP connection may be made before the freeze",
    )
    # To keep them the network is locked: not for nothing, and not where that would fail.
    assert planned(PLAIN, "keep").options.tcp is None
    assert planned(listening, "keep", nftables=False).options.tcp is None
    assert planned(listening).options.tcp is None


def test_a_connection_that_the_kernel_encrypts_is_closed_or_refused() -> None:
    """CRIU would restore it in plain text."""
    encrypted = SocketKind(100, 3, socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, layer="tls")
    observation = replace(PLAIN, connections=(CONNECTION,), sockets=(encrypted,))
    (told,) = planned(observation, "keep").blockers
    assert told.key == "tcp-layer"
    assert "fd 3 of PID 100" in told.what
    assert planned(observation, "close").blockers == ()


def test_keeping_connections_needs_a_criu_that_can_lock_them() -> None:
    observation = replace(PLAIN, connections=(CONNECTION,))
    assert keys(planned(observation, "keep", nftables=False).blockers) == ["network-lock"]
    assert planned(observation, "close", nftables=False).blockers == ()
    assert planned(PLAIN, "keep", nftables=False).blockers == ()


def test_a_session_leader_outside() -> None:
    found = planned(with_tree(replace(ROOT, sid=7)))
    assert found.options.shell_job
    assert "7" in why(found, "--shell-job")


def test_a_terminal_outside() -> None:
    found = planned(with_files(TERMINAL))
    assert found.options.shell_job
    assert "/dev/pts/3" in why(found, "--shell-job")
    assert not planned(with_files(replace(TERMINAL, target="/dev/pts/3 (deleted)"))).options.shell_job


@pytest.mark.parametrize("target", ["/dev/tty", "/dev/tty1", "/dev/console"])
def test_a_terminal_with_a_name_is_outside_with_its_session(target: str) -> None:
    observation = with_files(replace(TERMINAL, target=target))
    assert not planned(observation).options.shell_job
    child = replace(CHILD, sid=7)
    outside = replace(observation, tree=replace(observation.tree, processes=(ROOT, child)))
    of_child = replace(outside, descriptors=(replace(TERMINAL, pid=child.pid, target=target),))
    assert target in why(planned(of_child), "--shell-job")


@pytest.mark.parametrize("master", ["/dev/ptmx", "/dev/pts/ptmx"])
def test_a_terminal_whose_master_is_inside(master: str) -> None:
    inside = replace(TERMINAL, fd=4, target=master, info="pos:\t0\nflags:\t02\ntty-index:\t3\n")
    assert not planned(with_files(inside, TERMINAL, replace(TERMINAL, target="/dev/pts/3 (deleted)"))).options.shell_job
    other = replace(inside, info="pos:\t0\ntty-index:\t33\n")
    assert planned(with_files(other, TERMINAL)).options.shell_job


def test_file_locks() -> None:
    found = planned(
        with_files(FILE, replace(FILE, info="pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 100 08:01:5 0 EOF\n"))
    )
    assert found.options.file_locks
    assert why(found, "--file-locks") == "PID 100 holds a lock on /srv/data"
    assert not planned(with_files(replace(FILE, target="/srv/lock:file"))).options.file_locks


def test_a_file_that_lost_one_of_its_names() -> None:
    linked = replace(GONE, links=1)
    found = planned(with_files(linked))
    assert (found.options.link_remap, keys(found.warnings)) == (True, ["link-remap"])
    assert "/srv/gone (deleted) (fd 3 of PID 100)" in found.warnings[0].what
    stopping = planned(with_files(linked), stop=True)
    assert (stopping.options.link_remap, stopping.warnings) == (True, ())
    assert planned(replace(PLAIN, deleted_maps=(("/lib/x (deleted)", 5, 1),))).options.link_remap
    assert not planned(with_files(GONE)).options.link_remap


def test_a_private_network_is_locked_as_a_whole() -> None:
    there = with_tree(in_namespaces(ROOT, net=99))
    assert planned(PLAIN).options.network_lock is None
    assert planned(there).options.network_lock == "nftables"
    assert planned(there, nftables=False).options.network_lock == "skip"


@pytest.mark.parametrize(
    ("size", "limit"),
    [
        (0, 0),
        (MEBIBYTE // 2 - 1, 0),
        (MEBIBYTE // 2, MEBIBYTE),
        (MEBIBYTE, 2 * MEBIBYTE),
        (8 * MEBIBYTE, 11 * MEBIBYTE),
        (5 << 30, (5 << 30) * 5 // 4 + MEBIBYTE),
    ],
)
def test_deleted_files_fit_the_ghost_limit(size: int, limit: int) -> None:
    preallocated = with_files(replace(GONE, size=size // 3, allocated=size))
    for observation in (
        with_files(replace(GONE, size=size)),
        preallocated,
        replace(PLAIN, deleted_maps=(("/x (deleted)", size, 0),)),
    ):
        found = planned(observation)
        assert found.options.ghost_limit == limit
        assert limit == 0 or limit > size
        assert [reason.option for reason in found.reasons] == ([f"--ghost-limit {limit}"] if limit else [])
        assert found.warnings == ()


@pytest.mark.parametrize(
    "other",
    [
        replace(GONE, target="/memfd:big (deleted)", size=5 << 30),
        replace(GONE, mode=stat.S_IFDIR, size=5 << 30),
        replace(GONE, links=2, size=5 << 30),
        replace(FILE, size=5 << 30),
    ],
)
def test_files_that_are_no_ghosts(other: Descriptor) -> None:
    assert planned(with_files(other)).options.ghost_limit == 0


@pytest.mark.parametrize("name", ["/memfd:x (deleted)", "/dev/zero (deleted)", "/SYSV00000000 (deleted)"])
def test_shared_memory_is_no_ghost(name: str) -> None:
    assert planned(replace(PLAIN, deleted_maps=((name, 5 << 30, 0), (name, 5, 1)))).options == DumpOptions()


def test_datagram_sockets() -> None:
    sockets = with_files(replace(FILE, target="socket:[777]"), replace(FILE, target="socket:nonsense"))
    found = planned(replace(sockets, datagram_sockets=frozenset({777, 778})))
    assert found.options.ext_unix_sk
    assert why(found, "--ext-unix-sk")
    assert not planned(replace(sockets, datagram_sockets=frozenset({778}))).options.ext_unix_sk


@pytest.mark.parametrize(
    ("end", "key", "told"),
    [(READS, "outside-pipe-read", "then end of file"), (WRITES, "outside-pipe", "the output of crckpt restore")],
)
def test_a_pipe_to_a_process_outside(end: Descriptor, key: str, told: str) -> None:
    observation = with_files(end, replace(end, pid=101, fd=9))
    (warning,) = planned(observation).warnings
    assert (warning.key, told in warning.what) == (key, True)
    assert "fd 3 of PID 100" in warning.what
    assert planned(replace(observation, closed_pipes=frozenset({55}))).warnings == ()


def test_more_pipes_than_criu_saves() -> None:
    many = tuple(replace(READS, target=f"pipe:[{number}]") for number in range(1024))
    full = with_files(*many, *many, replace(WRITES, target="pipe:[9999]"))
    assert planned(full).blockers == ()
    (found,) = planned(with_files(*many, replace(READS, target="pipe:[9999]", flags=os.O_RDWR))).blockers
    assert (found.key, "1025 pipes" in found.what) == ("pipes-too-many", True)


def test_pipes_inside_are_not_reported() -> None:
    assert planned(with_files(READS, replace(WRITES, pid=101))).warnings == ()
    assert planned(with_files(replace(READS, flags=os.O_RDWR))).warnings == ()
    assert planned(with_files(READS, replace(READS, flags=os.O_RDWR))).warnings == ()
    two = planned(with_files(READS, replace(WRITES, target="pipe:[56]")))
    assert keys(two.warnings) == ["outside-pipe-read", "outside-pipe"]


def test_an_eventfd_that_counts_like_a_semaphore() -> None:
    plain = replace(FILE, target="anon_inode:[eventfd]", info="eventfd-count: 3 eventfd-id: 1 eventfd-semaphore: 0\n")
    assert planned(with_files(plain)).warnings == ()
    (warning,) = planned(with_files(replace(plain, info=plain.info.replace("phore: 0", "phore: 1")))).warnings
    assert warning.key == "eventfd-semaphore"
    assert "fd 3 of PID 100" in warning.what


def test_traced_processes() -> None:
    found = planned(with_tree(ROOT, replace(CHILD, tracer=900)))
    assert keys(found.blockers) == ["traced"]
    assert found.blockers[0].what.startswith("process 101 (worker) is traced by process 900 (gdb)")
    assert "(?)" in planned(with_tree(replace(ROOT, tracer=902))).blockers[0].what
    assert keys(planned(with_tree(replace(ROOT, tracer=901))).blockers) == ["being-dumped"]


@pytest.mark.parametrize("kind", ["pid", "ipc", "uts", "time", "cgroup"])
def test_nested_namespaces(kind: str) -> None:
    nested = in_namespaces(CHILD, **{kind: 99})
    found = planned(with_tree(ROOT, nested))
    assert keys(found.blockers) == ["nested-namespace"]
    assert f"process 101 has its own {kind} namespace" in found.blockers[0].what
    assert planned(with_tree(ROOT, replace(nested, state="zombie"))).blockers == ()
    assert planned(with_tree(in_namespaces(ROOT, **{kind: 99}), nested)).blockers == ()


@pytest.mark.parametrize(("kind", "key"), [("user", "other-user-namespace"), ("net", "namespace-owner")])
def test_namespaces_of_another_user_namespace(kind: str, key: str) -> None:
    (found,) = planned(replace(PLAIN, foreign_namespaces=(ForeignNamespace(101, "worker", kind),))).blockers
    assert (found.key, found.key in UNCONDITIONAL) == (key, True)
    assert "process 101 (worker)" in found.what


@pytest.mark.parametrize("kind", ["mnt", "net"])
def test_nested_namespaces_that_criu_saves_only(kind: str) -> None:
    found = planned(with_tree(ROOT, in_namespaces(CHILD, **{kind: 99})))
    assert keys(found.blockers) == ["nested-unmade"]
    assert found.blockers[0].what.startswith("process 101 (worker) has its own mount or network namespace")


def test_containers_are_left_to_their_engine() -> None:
    found = planned(with_tree(replace(in_namespaces(ROOT, pid=99, mnt=98), ns_pids=(100, 1))))
    assert keys(found.blockers) == ["container"]


def test_a_tree_in_another_mount_namespace_is_entered() -> None:
    found = planned(with_tree(in_namespaces(ROOT, mnt=98)))
    assert (found.enter, keys(found.warnings), found.blockers) == (("mnt",), ["mount-namespace"], ())


def test_a_tree_that_was_restored_into_a_pid_namespace_is_entered() -> None:
    found = planned(with_tree(replace(in_namespaces(ROOT, pid=99, mnt=98, net=97), ns_pids=(100, 7))))
    assert (found.enter, found.warnings, found.blockers) == (("pid", "mnt"), (), ())


def without_cap(observation: Observed) -> Observed:
    return replace(observation, own_capabilities=ALL_CAPABILITIES - {CAP_SYS_RESOURCE})


@pytest.mark.parametrize(
    ("processes", "as_user", "blockers"),
    [
        ((ROOT, CHILD), None, []),
        ((as_uid(ROOT, 33), as_uid(CHILD, 33)), (33, 33), []),
        ((as_uid(ROOT, 33), as_uid(CHILD, 34)), None, ["foreign-limits"]),
        ((ROOT, as_uid(CHILD, 33)), None, ["foreign-limits"]),
        ((as_uid(ROOT, 33, 0, 0), CHILD), None, ["foreign-limits"]),
        ((as_uid(ROOT, 33, 0, 33), as_uid(CHILD, 33, 0, 33)), None, ["foreign-limits"]),
        ((ROOT, replace(as_uid(CHILD, 33), state="zombie")), None, []),
        ((as_uid(ROOT, 33), replace(CHILD, state="zombie")), (33, 33), []),
    ],
)
def test_limits_of_other_users(
    processes: tuple[Process, Process], as_user: tuple[int, int] | None, blockers: list[str]
) -> None:
    observation = with_tree(*processes)
    limited = planned(without_cap(observation))
    assert (limited.as_user, keys(limited.blockers)) == (as_user, blockers)
    able = planned(observation)
    assert (able.as_user, able.blockers) == (None, ())


def test_a_user_with_unreadable_limits_is_named() -> None:
    (blocker,) = planned(without_cap(with_tree(ROOT, as_uid(CHILD, 33)))).blockers
    assert "process 101 (worker) runs as user 33" in blocker.what


def test_every_finding_is_complete() -> None:
    observation = replace(
        with_tree(replace(in_namespaces(ROOT, mnt=98), tracer=900), in_namespaces(as_uid(CHILD, 33), mnt=98, uts=6)),
        descriptors=(READS, replace(GONE, links=1), replace(FILE, info="eventfd-semaphore: 1")),
        connections=(CONNECTION,),
    )
    found = planned(without_cap(observation))
    assert keys(found.blockers) == ["nested-namespace", "traced", "foreign-limits", "tcp"]
    warnings = ["outside-pipe-read", "link-remap", "eventfd-semaphore", "mount-namespace", "untested-kind"]
    assert keys(found.warnings) == warnings
    assert not any("?" in str(finding) or "{" in str(finding) for finding in (*found.blockers, *found.warnings))


def test_a_unix_connection_to_the_outside_is_a_blocker() -> None:
    observation = replace(PLAIN, outside_ends=(OutsideEnd(100, 1, "/run/journal/stdout"), OutsideEnd(101, 4, "")))
    told = [finding.what for finding in planned(observation).blockers]
    assert told == [
        "descriptor 1 of PID 100, a unix socket to /run/journal/stdout, is connected to a process outside the tree",
        "descriptor 4 of PID 101, a unix socket, is connected to a process outside the tree",
    ]


def test_interrupted_calls_are_reported_by_thread() -> None:
    """Without the preload library all of them; with it those that only the kernel could restart."""
    waits = (WaitingThread(100, 105, "poll"), WaitingThread(101, 101, RESTARTED))
    observation = replace(PLAIN, waits=waits)
    again = cause("call-interrupted-again").finding(pid=101, tid=101)
    assert planned(observation).warnings == (again,)
    without = plan_dump(observation, None, stop=False, locks_by_nftables=True, names={}, restarts_calls=False)
    assert without.warnings == (cause("call-interrupted").finding(pid=100, tid=105, call="poll"), again)


def test_the_preload_library_is_there_in_the_trees_own_mounts() -> None:
    apart = replace(ROOT, namespaces=(("pid", 1), ("mnt", 99), *NAMESPACES[2:]))
    observation = replace(with_tree(apart), waits=(WaitingThread(100, 100, "epoll_wait"),))
    assert keys(planned(observation).warnings) == ["mount-namespace"]
