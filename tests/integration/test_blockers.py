"""Blockers of a dump: `doctor` reports them, and a forced dump is explained with the same words."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from provoked.criu import criu
from trees import PYTHON, Case, Tree, open_workdir, runs, wait_for

from crckpt.causes import cause
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import examine
from crckpt.ops.dump.request import DumpRequest

REFUSED: Final = 24
FAILED: Final = 21
MNT_DETACH: Final = 2
LIBC: Final = ctypes.CDLL(None)

KINDS: Final = {
    "alarm_timer": "timerfd-clock",
    "block_device": "device",
    "bpf_filter": "socket-program",
    "bpf_queue": "bpf-map",
    "character_device": "device",
    "corked": "corked",
    "current_terminal": "terminal-current",
    "deep_file": "long-path",
    "detached": "mount-lookup",
    "device_map": "device-map",
    "epoll_of_closed": "epoll-closed",
    "epoll_of_reused": "epoll-closed",
    "foreign_namespace": "namespace-outside",
    "foreign_socket": "socket-namespace",
    "foreign_unix_socket": "socket-namespace",
    "hidden_directory": "file-hidden",
    "hidden_file": "file-hidden",
    "hidden_gone": "file-hidden",
    "hidden_map": "file-hidden",
    "io_uring_map": "io-uring",
    "long_groups": "groups",
    "many_groups": "groups",
    "nested_cgroup": "nested-namespace",
    "nested_pids": "nested-pid-namespace",
    "netlink_groups": "netlink-groups",
    "netlink_unbound": "netlink-groups",
    "netlink_unread": "netlink-data",
    "overmounted": "file-hidden",
    "packet_pipe": "packet-pipe",
    "perf_map": "unknown-mapping",
    "pidfd_outside": "pidfd-outside",
    "pidfd_thread": "pidfd-thread",
    "secret_memory": "secretmem",
    "shared_descriptors": "descriptors-in-common",
    "shared_directories": "directories-in-common",
    "shared_memory": "memory-in-common",
    "system_v_memory": "sysv-shm",
    "terminals": "terminal-outside",
    "thread_leader_gone": "thread-leader-gone",
    "time_namespace": "nested-namespace",
    "trapped": "breakpoint",
    "tunnel": "tun",
    "unaccepted": "tcp-in-flight",
    "unix_client_gone": "unix-in-flight",
    "unix_client_waits": "unix-in-flight",
    "unix_nameless": "unix-outside",
    "unread_credentials": "in-message-descriptors",
    "vfork": "freeze-timeout",
    "watch": "watch",
    "watch_by_fanotify": "watch",
    "watch_of_removed": "watch",
}


@pytest.mark.parametrize(("kind", "key"), KINDS.items(), ids=KINDS)
def test_blocker_is_reported_before_the_dump_and_explained_if_criu_fails_on_it(
    crckpt: Crckpt, kind: str, key: str, tmp_path: Path
) -> None:
    """CRIU may name less than the preflight: then the explanation has the words for unknown values."""
    environment = {"CRCKPT_CRIU": str(impatient(tmp_path / "criu"))} if key == "freeze-timeout" else {}
    with held(kind) as tree:
        before = tree.counters()
        # The command doctor would also make three dumps to estimate the cost.
        (blocker,) = examine(DumpRequest(str(tree.pid)), Context(crckpt.store)).plan.blockers
        assert blocker.key == key
        words = ("dump", str(tree.pid), "job", "--no-preflight", "--json")
        error = crckpt.run(*words, status=FAILED, **environment).document["error"]
        # CRIU does not say which process has the file.
        what = blocker.what.replace(f" of PID {tree.pid})", ")")
        assert what in error["message"] or cause(key).finding().what in error["message"]
        assert error["hint"] == blocker.remedy
        tree.wait_growth(before)


@pytest.mark.parametrize(
    ("kind", "key"),
    {
        "changed_vdso": "vdso-changed",
        "full_addresses": "no-free-address",
        "full_descriptors": "no-free-descriptor",
        "full_maps": "no-free-map",
        "message_queue": "message-queue",
        "owner_thread": "signal-thread",
        "path_of_socket": "socket-file",
        "part_of_segment": "sysv-shm-part",
        "program_in_memory": "program-in-memory",
        "signals_above_limit": "signals-queued",
        "unmapped_vdso": "vdso-unmapped",
        "unmapped_vvar": "vdso-unmapped",
        "watch_of_file_system": "watch-file-system",
    }.items(),
)
def test_blocker_that_criu_would_not_report_is_reported_before_the_dump(crckpt: Crckpt, kind: str, key: str) -> None:
    """CRIU's own log would not tell the cause.

    At a limit, CRIU's code may end the process, and the log says only that something failed. For a message queue CRIU
    blames a mount, for the file of a socket the kernel. It saves only a part of a segment, and the restore fails.
    """
    with held(kind) as tree:
        before = tree.counters()
        words = [("doctor", str(tree.pid)), ("dump", str(tree.pid), "job", "--dry-run"), ("dump", str(tree.pid), "job")]
        documents = [crckpt.run(*command, "--json", status=REFUSED).document for command in words]
        (blocker,) = documents[0]["result"]["blockers"]
        assert blocker["key"] == key
        assert [each["error"]["message"] for each in documents[1:]] == [blocker["what"]] * 2
        tree.wait_growth(before)


@pytest.mark.parametrize("command", ["restore job --new-pid-namespace", "restore job --no-preflight", "rehearse job"])
def test_checkpoint_of_a_program_with_a_changed_vdso_is_refused_before_criu_starts(
    crckpt: Crckpt, command: str
) -> None:
    """CRIU would write, with root's rights, where the symbols of the vDSO point to. A store may be made by others."""
    with held("changed_vdso") as tree:
        crckpt.run("dump", str(tree.pid), "job", "--no-preflight")
        error = crckpt.run(*command.split(), "--json", status=REFUSED).document["error"]
        assert f"PID {tree.pid} has changed the symbols of its vDSO" in " ".join([error["message"], *error["causes"]])


@pytest.mark.parametrize(("kind", "key"), [("own_dev", "mount-lookup"), ("left_mounts", "mount-lookup-mapped")])
def test_files_outside_the_programs_mounts_are_reported_before_the_dump(crckpt: Crckpt, kind: str, key: str) -> None:
    with held(kind) as tree:
        before = tree.counters()
        blockers = crckpt.run("doctor", str(tree.pid), "--json", status=REFUSED).document["result"]["blockers"]
        assert key in {blocker["key"] for blocker in blockers} <= {"mount-lookup", "mount-lookup-mapped"}
        for blocker in blockers:
            assert ("/dev/null" in blocker["what"]) == (blocker["key"] == "mount-lookup")
            assert f" of PID {tree.pid})" in blocker["what"] or blocker["key"] != "mount-lookup"
            assert ("Ubuntu" in blocker["remedy"]) == (blocker["key"] == "mount-lookup-mapped")
        crckpt.run("dump", str(tree.pid), "job", "--stop", status=REFUSED)
        error = crckpt.run("dump", str(tree.pid), "job", "--no-preflight", "--json", status=FAILED).document["error"]
        assert error["hint"] in {blocker["remedy"] for blocker in blockers}
        tree.wait_growth(before)


def impatient(path: Path) -> Path:
    """The CRIU in use, at `path`, which waits no 10 s for a tree to freeze."""
    path.write_text(f'#!/bin/sh\n[ "$1" != dump ] || set -- "$@" --timeout 1\nexec {criu()} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("kind", ["nested_mount", "nested_network"])
def test_object_that_can_be_dumped_but_not_restored_is_reported_before_the_dump(crckpt: Crckpt, kind: str) -> None:
    with held(kind) as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json", status=REFUSED).document["result"]
        (blocker,) = result["blockers"]
        assert blocker["key"] == "nested-unmade"
        assert blocker["what"].endswith(
            "(python3) has its own mount or network namespace, which a restore does not bring back"
        )
        words = ("dump", str(tree.pid), "job", "--no-preflight", "--stop")
        assert "namespace inside the tree" in crckpt.run(*words, status=REFUSED).err
        crckpt.run(*words, "--force")
        tree.wait_gone()
        error = crckpt.run("restore", "job", "--detach", "--json", status=23).document["error"]
        assert cause("nested-unmade").finding().what in error["message"]
        assert error["hint"] == blocker["remedy"]


def test_socket_of_another_network_namespace_is_reported_before_the_dump(crckpt: Crckpt) -> None:
    """CRIU saves such a socket without an error, and opens another one in the namespace where the program runs."""
    with held("foreign_datagrams") as tree:
        (blocker,) = examine(DumpRequest(str(tree.pid)), Context(crckpt.store)).plan.blockers
        assert blocker.key == "socket-namespace"
        crckpt.run("dump", str(tree.pid), "job", "--no-preflight")


def test_open_bpf_map_gives_a_warning_and_does_not_prevent_the_dump(crckpt: Crckpt) -> None:
    with held("bpf_array") as tree:
        examined = examine(DumpRequest(str(tree.pid)), Context(crckpt.store))
        assert examined.plan.blockers == ()
        assert [warning.key for warning in examined.plan.warnings] == ["bpf-map-support", "untested-kind"]


def test_harmless_objects_that_resemble_blockers_do_not_prevent_a_dump(crckpt: Crckpt) -> None:
    with held("harmless") as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        assert result["blockers"] == []
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), "job")
        tree.wait_growth(before)


def test_signals_of_a_descriptor_to_a_process_outside_the_tree_are_reported(crckpt: Crckpt) -> None:
    with held("owner_outside") as tree:
        other = int((tree.workdir / "outside").read_text())
        warnings = crckpt.run("doctor", str(tree.pid), "--json").document["result"]["warnings"]
        assert [warning["key"] for warning in warnings] == ["signal-outside"] * 2
        for kind, warning in zip(("process", "process group"), warnings, strict=True):
            assert f"sends signals to {kind} {other} outside the tree" in warning["what"]
        before = tree.counters()
        assert warnings[0]["what"] in crckpt.run("dump", str(tree.pid), "job", "--stop", status=REFUSED).err
        tree.wait_growth(before)
        crckpt.run("dump", str(tree.pid), "job", "--stop", "--force")
        tree.wait_gone()
        os.kill(other, signal.SIGKILL)
        wait_for(lambda: not runs(other), 60, "the other to end")
        error = crckpt.run("restore", "job", "--detach", status=23).err
        assert "sends signals (F_SETOWN) to a process or thread that does not exist" in error


def test_program_that_sends_signals_to_itself_is_restored(crckpt: Crckpt) -> None:
    with held("owner_inside") as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        assert result["blockers"] == result["warnings"] == []
        crckpt.run("dump", str(tree.pid), "job", "--stop")
        tree.wait_gone()
        before = tree.counters()
        crckpt.run("restore", "job", "--detach")
        tree.wait_growth(before)


def test_traced_thread_is_refused_like_a_traced_process(crckpt: Crckpt) -> None:
    with held("thread_traced") as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json", status=REFUSED).document["result"]
        (blocker,) = result["blockers"]
        assert blocker["key"] == "traced"
        assert "(python3), and only one process can trace at a time" in blocker["what"]
        error = crckpt.run("dump", str(tree.pid), "job", "--no-preflight", "--json", status=FAILED).document["error"]
        assert blocker["what"] in error["message"]
        assert error["hint"] == blocker["remedy"]


def test_dump_warns_that_a_memory_seal_will_be_lost(crckpt: Crckpt) -> None:
    with held("sealed") as tree:
        assert tree.facts()[""]["sealed"]
        result = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        (warning,) = result["warnings"]
        assert warning["key"] == "sealed"
        assert f"PID {tree.pid} has sealed memory" in warning["what"]
        assert warning["what"] in crckpt.run("dump", str(tree.pid), "job", "--stop").out
        tree.wait_gone()
        before = tree.counters()
        crckpt.run("restore", "job", "--detach")
        tree.wait_growth(before)
        assert not tree.facts()[""]["sealed"]


def test_lost_attributes_of_a_removed_file_are_a_warning(crckpt: Crckpt) -> None:
    with held("removed_attributes") as tree:
        (warning,) = crckpt.run("doctor", str(tree.pid), "--json").document["result"]["warnings"]
        assert warning["key"] == "removed-attributes"
        assert f"loses the extended attributes of the removed file {tree.workdir}/marked (fd " in warning["what"]
        assert warning["what"].endswith(": user.mark")
        assert warning["what"] in crckpt.run("dump", str(tree.pid), "job", "--stop").out
        tree.wait_gone()
        before = tree.counters()
        crckpt.run("restore", "job", "--detach")
        tree.wait_growth(before)


def test_lock_shared_with_an_outside_process_is_reported(crckpt: Crckpt) -> None:
    with held("shared_lock") as tree:
        other = int((tree.workdir / "outside").read_text())
        result = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        (warning,) = result["warnings"]
        assert warning["key"] == "lock-shared"
        assert f"process {other} outside the tree also holds the lock on " in warning["what"]
        crckpt.run("dump", str(tree.pid), "job", "--stop")
        tree.wait_gone()
        before = tree.counters()
        error = crckpt.run("restore", "job", "--detach", status=REFUSED).err
        assert f"is held by python3 (PID {other}) now" in error
        os.kill(other, signal.SIGKILL)
        wait_for(lambda: not runs(other), 60, "the other to end")
        crckpt.run("restore", "job", "--detach")
        tree.wait_growth(before)


@contextmanager
def held(kind: str) -> Iterator[Tree]:
    """A tree with the blocker; the test is skipped on machines that cannot have it."""
    case = Case(kind, (PYTHON, "{programs}/blocked.py", "{workdir}", kind))
    with open_workdir() as workdir:
        try:
            with Tree(case, workdir) as tree:
                yield tree
        except AssertionError as error:
            if str(error) == f"{kind} ended with 77":
                pytest.skip(f"this machine has no {kind}")
            raise
        finally:
            while LIBC.umount2(os.fsencode(workdir / "mount"), MNT_DETACH) == 0:
                pass
