"""Blockers and warnings of restores, for the images of a real tree and hosts written by hand."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from crckpt.host.disk.packages import Package
from crckpt.host.proc import IdUser
from crckpt.host.proc.writers import Writer
from crckpt.images.core import Credentials
from crckpt.images.files import OpenFile
from crckpt.images.ids import KernelIds
from crckpt.images.pipes import Pipe
from crckpt.images.regfile import GHOST, LINKED, PROCESS, RegularFile, Remap
from crckpt.images.sockets import DATAGRAM, Address, InetSocket
from crckpt.images.tree import ImageTree
from crckpt.images.tty import TerminalInfo
from crckpt.model import utc_datetime
from crckpt.preflight.restore.checks import UNCONDITIONAL, Verdict, judge_restore
from crckpt.preflight.restore.files import Rewind, changed_paths, file_uses, needed_files, needed_path
from crckpt.preflight.restore.host import FileState, HostState
from crckpt.preflight.restore.pipes import OutsidePipe
from crckpt.preflight.restore.plan import PlannedRestore
from crckpt.preflight.restore.requirements import DiskSpace, HostResources
from crckpt.preflight.restore.sockets import bound_sockets
from crckpt.preflight.restore.tasks import needed_ids

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN = "/tmp/crckpt-images/run"
LOG, PLAIN = f"{RUN}/log", f"{RUN}/plain"
CHANGED_AFTER = timedelta(seconds=50)
CHANGED = f"{(CREATED + CHANGED_AFTER).astimezone():%Y-%m-%d %H:%M:%S}"
RESOURCES = HostResources(
    arch="x86_64",
    cpu_features=frozenset({"avx2", "sse2", "hypervisor"}),
    missing=(),
    pid_limit=1 << 22,
    tasks=None,
    memory=1 << 20,
    free_memory=1 << 30,
    disks=(DiskSpace("/srv", 1 << 20, 1 << 30),),
    huge_pages=(),
)


@pytest.fixture
def planned(tree: ImageTree) -> PlannedRestore:
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
            needed_path(file): FileState(
                size=file.size if file.size is not None else 11,
                mode=file.mode if file.mode is not None else stat.S_IFREG | 0o644,
                written=CREATED - timedelta(hours=1),
                changed=CREATED + CHANGED_AFTER,
                build_id=file.build_id,
            )
            for file in needed_files(tree)
        },
        refused={},
        resources=RESOURCES,
    )


def with_changed(host: HostState, path: str, **changes: object) -> HostState:
    """Return the host with one file changed."""
    file = host.files[path]
    assert file is not None
    return replace(host, files=host.files | {path: replace(file, **changes)})


def without_sockets(tree: ImageTree) -> tuple[OpenFile, ...]:
    return tuple(file for file in tree.files if not isinstance(file, InetSocket))


def file_of(tree: ImageTree, path: str) -> RegularFile:
    return next(file for file in tree.regular_files if needed_path(file) == path)


def with_file(tree: ImageTree, path: str, change: Callable[[RegularFile], RegularFile]) -> ImageTree:
    """Return the tree with one of its files changed."""
    return replace(
        tree,
        files=tuple(
            change(file) if isinstance(file, RegularFile) and needed_path(file) == path else file for file in tree.files
        ),
    )


def only_blocker(verdict: Verdict) -> str:
    (finding,) = verdict.blockers
    assert (verdict.warnings, verdict.rewinds) == ((), ())
    assert "?" not in str(finding)
    return f"{finding.key}: {finding}"


@pytest.mark.parametrize("ours", ["4.1.1", "3.17.1", "4.1-rc1"])
def test_an_older_criu_is_refused(planned: PlannedRestore, host: HostState, ours: str) -> None:
    said = only_blocker(judge_restore(replace(planned, crius=("4.2.1", ours)), host))
    assert said.startswith(f"older-criu: CRIU 4.2.1 made this checkpoint, and this older one, {ours}, ")


@pytest.mark.parametrize(
    "crius",
    [
        ("4.1.1", "4.2.1"),
        ("4.2.1", "4.2"),
        ("4.9", "4.10"),
        ("unknown", "4.1"),
        ("4.2", ""),
        ("9" * 5000 + ".1", "4.2.1"),
    ],
)
def test_a_criu_that_is_not_known_to_be_older_may_restore(
    planned: PlannedRestore, host: HostState, crius: tuple[str, str]
) -> None:
    assert judge_restore(replace(planned, crius=crius), host).blockers == ()


def test_an_unchanged_host_has_no_findings(planned: PlannedRestore, host: HostState) -> None:
    assert judge_restore(planned, host) == Verdict((), (), (), (), needs_terminal=False)


def test_all_ids_of_the_tree_are_needed(tree: ImageTree) -> None:
    asked = needed_ids(tree)
    assert asked >= {process.pid for process in tree.processes}
    assert asked >= {thread.tid for process in tree.processes for thread in process.threads}
    group = replace(tree.processes[1], pgid=4000)
    outside = replace(tree, processes=(replace(tree.root, sid=0), group, *tree.processes[2:]))
    assert 4000 in needed_ids(outside), "the leader of this group has ended"
    assert 0 not in needed_ids(outside), "0 stands for a session outside the pid namespace"


def test_session_and_group_of_the_shell_may_be_taken(tree: ImageTree) -> None:
    """The tree gets crckpt's own."""
    asked = needed_ids(tree)
    others = (replace(process, sid=5000) for process in tree.processes[1:])
    outside = replace(tree, processes=(replace(tree.root, pgid=5001, sid=5000), *others))
    assert needed_ids(outside) == asked


def test_each_path_is_needed_once_preferably_with_its_size(tree: ImageTree) -> None:
    asked = [needed_path(file) for file in needed_files(tree)]
    assert len(asked) == len(set(asked))
    assert {LOG, PLAIN, RUN, "/", f"{RUN}/shared-map"} <= set(asked)
    appended = replace(file_of(tree, PLAIN), id=10**6, size=None, flags=os.O_WRONLY | os.O_APPEND)
    for files in ((appended, *tree.files), (*tree.files, appended)):
        (chosen,) = (file for file in needed_files(replace(tree, files=files)) if file.path == PLAIN)
        assert chosen.size == 100


def test_deleted_files_need_no_path(tree: ImageTree) -> None:
    file = file_of(tree, PLAIN)
    assert needed_path(replace(file, remap=Remap(GHOST, 5))) == ""
    assert needed_path(replace(file, remap=Remap(PROCESS, 5))) == ""
    assert needed_path(replace(file, remap=Remap(LINKED, 5, "/srv/link_remap.5"))) == "/srv/link_remap.5"


@pytest.mark.parametrize(
    "change", [{"path": "/proc/5/stat"}, {"path": "/dev/pts/3"}, {"path": "pipe:[5]"}, {"external": True}]
)
def test_paths_that_need_not_exist(tree: ImageTree, change: dict[str, object]) -> None:
    assert needed_path(replace(file_of(tree, PLAIN), **change)) == ""


def test_a_tree_with_its_own_mounts_brings_its_files(planned: PlannedRestore, host: HostState) -> None:
    ids = planned.tree.root.ids
    assert ids is not None
    other = KernelIds(ids.vm, ids.files, ids.fs, ids.sighand, replace(ids.namespaces, mnt=ids.namespaces.mnt + 1))
    apart = replace(planned.tree, processes=(replace(planned.tree.root, ids=other), *planned.tree.processes[1:]))
    assert needed_files(apart) == ()
    assert judge_restore(replace(planned, tree=apart), replace(host, files={})).blockers == ()


def test_a_recorded_user_namespace_is_an_unconditional_blocker(planned: PlannedRestore, host: HostState) -> None:
    ids = planned.tree.root.ids
    assert ids is not None
    other = replace(ids, namespaces=replace(ids.namespaces, user=ids.namespaces.user + 1))
    apart = replace(planned.tree, processes=(replace(planned.tree.root, ids=other), *planned.tree.processes[1:]))
    (blocker,) = judge_restore(replace(planned, tree=apart), host).blockers
    assert blocker.key in UNCONDITIONAL
    assert "had its own user namespace at the dump" in blocker.what


def test_uses_name_process_and_use(tree: ImageTree) -> None:
    used = file_uses(tree)
    assert used[file_of(tree, LOG).id].endswith(f"of python3, PID {tree.root.pid}")
    assert used[file_of(tree, LOG).id].startswith("fd ")
    assert used[file_of(tree, f"{RUN}/private-map").id] == f"mapped by python3, PID {tree.root.pid}"
    assert tree.root.exe is not None
    assert tree.root.root is not None
    assert used[tree.root.exe.id].endswith(f"python3, PID {tree.root.pid}")
    assert used[tree.root.root.id] == f"root directory of python3, PID {tree.root.pid}"
    assert {file.id for file in needed_files(tree)} <= used.keys()


@pytest.mark.parametrize("role", ["PID", "thread", "group", "session"])
def test_taken_ids(planned: PlannedRestore, host: HostState, role: str) -> None:
    taken = replace(host, owners=(IdUser(7993, role, 41, 1, "nginx", "sleeping"),))
    assert judge_restore(planned, taken).is_in_use
    told = only_blocker(judge_restore(planned, taken))
    assert told.startswith(f"pid-taken: {role} 7993 is in use by nginx (PID 41)")
    assert judge_restore(replace(planned, new_pid_namespace=True), taken).blockers == ()


def test_an_id_that_crckpt_itself_has(planned: PlannedRestore, host: HostState) -> None:
    """crckpt has ended by the time the user could look for it."""
    ours = replace(host, us=7993, owners=(IdUser(7993, "PID", 7993, 1, "crckpt", "running"),))
    assert "type it again" in only_blocker(judge_restore(planned, ours))


def test_a_taken_pid_covers_the_threads_of_the_process(planned: PlannedRestore, host: HostState) -> None:
    threads = tuple(IdUser(number, "thread", 7993, 1, "x", "sleeping") for number in (7996, 7997))
    other = IdUser(7998, "group", 41, 1, "y", "sleeping")
    verdict = judge_restore(
        planned, replace(host, owners=(IdUser(7993, "PID", 7993, 1, "x", "sleeping"), *threads, other))
    )
    assert [finding.what.split(" is ")[0] for finding in verdict.blockers] == ["PID 7993", "group 7998"]
    assert len(judge_restore(planned, replace(host, owners=threads)).blockers) == 2


def test_an_id_of_an_unreaped_process(planned: PlannedRestore, host: HostState) -> None:
    told = only_blocker(judge_restore(planned, replace(host, owners=(IdUser(7993, "PID", 7993, 40, "old", "zombie"),))))
    assert told.startswith(
        "pid-unreaped: PID 7993 is in use by old, which has ended but is not yet reaped by its parent 40"
    )


def test_a_missing_file(planned: PlannedRestore, host: HostState) -> None:
    for files in (host.files | {PLAIN: None}, {path: file for path, file in host.files.items() if path != PLAIN}):
        told = only_blocker(judge_restore(planned, replace(host, files=files)))
        assert told.startswith(f"file-missing: {PLAIN} is missing (fd ")


@pytest.mark.parametrize("grown", ["refuse", "keep", "rewind"])
@pytest.mark.parametrize("path", [LOG, PLAIN])
def test_a_file_that_shrank(planned: PlannedRestore, host: HostState, grown: str, path: str) -> None:
    assert grown in ("refuse", "keep", "rewind")
    chosen = replace(planned, grown=grown)
    size = 11 if path == LOG else 100
    told = only_blocker(judge_restore(chosen, with_changed(host, path, size=size - 1)))
    assert told.startswith(
        f"file-shrunk: {path} has {size - 1} bytes since {CHANGED}; at the checkpoint it had {size} (fd "
    )
    assert f"{CREATED.astimezone():%Y-%m-%d %H:%M:%S}" in told


@pytest.mark.parametrize(
    ("path", "grown", "blockers", "warnings", "rewinds"),
    [
        (LOG, "refuse", ["log-grown"], [], ()),
        (LOG, "keep", [], ["log-kept"], ()),
        (LOG, "rewind", [], ["file-rewound"], (Rewind(LOG, 11),)),
        (PLAIN, "refuse", ["file-grown"], [], ()),
        (PLAIN, "keep", ["file-grown"], [], ()),
        (PLAIN, "rewind", [], ["file-rewound"], (Rewind(PLAIN, 100),)),
    ],
)
def test_files_that_grew(
    planned: PlannedRestore,
    host: HostState,
    path: str,
    grown: str,
    blockers: list[str],
    warnings: list[str],
    rewinds: tuple[Rewind, ...],
) -> None:
    verdict = judge_restore(replace(planned, grown=grown), with_changed(host, path, size=500))
    assert [finding.key for finding in verdict.blockers] == blockers
    assert [finding.key for finding in verdict.warnings] == warnings
    assert verdict.rewinds == rewinds
    (finding,) = (*verdict.blockers, *verdict.warnings)
    assert "to 500 bytes" in finding.what
    assert (f"last at {CHANGED}" in finding.what) == bool(verdict.blockers)
    assert "?" not in str(finding)


def test_no_file_is_cut_that_is_open_for_writing(planned: PlannedRestore, host: HostState) -> None:
    """It may be the program itself, whose PID is no blocker in a new PID namespace."""
    chosen = replace(planned, grown="rewind", new_pid_namespace=True)
    verdict = judge_restore(chosen, replace(with_changed(host, PLAIN, size=500), writers={PLAIN: Writer(41, "nginx")}))
    assert (verdict.rewinds, verdict.is_in_use) == ((), True)
    (finding,) = verdict.blockers
    assert "nginx (PID 41) has it open for writing" in finding.what


def test_no_file_is_cut_through_a_link(planned: PlannedRestore, host: HostState) -> None:
    """The link may lead to another file."""
    verdict = judge_restore(replace(planned, grown="rewind"), with_changed(host, PLAIN, size=500, is_linked=True))
    assert ([finding.key for finding in verdict.blockers], verdict.rewinds) == (["file-linked"], ())


@pytest.mark.parametrize("grown", ["refuse", "rewind"])
def test_no_program_is_cut(planned: PlannedRestore, host: HostState, grown: str) -> None:
    """A longer program is another build, also without a build-id."""
    assert grown in ("refuse", "rewind")
    programs = {file.path for file in needed_files(planned.tree) if file.build_id}
    assert len(programs) > 1
    for path in programs:
        file = host.files[path]
        assert file is not None
        verdict = judge_restore(replace(planned, grown=grown), with_changed(host, path, size=file.size + 1))
        assert verdict.rewinds == ()
        (finding,) = verdict.blockers
        assert (finding.key, verdict.is_in_use) == ("program-grown", False)


def test_the_position_of_a_log_may_be_after_its_recorded_size(planned: PlannedRestore, host: HostState) -> None:
    """The size is read before the freeze; later appends move the position."""
    early = replace(planned, append_sizes={LOG: 4})
    assert judge_restore(early, host).blockers == ()
    (grown,) = judge_restore(early, with_changed(host, LOG, size=12)).blockers
    assert "from 11 to 12 bytes" in grown.what


def test_a_log_without_recorded_size_is_not_compared(planned: PlannedRestore, host: HostState) -> None:
    assert judge_restore(replace(planned, append_sizes={}), with_changed(host, LOG, size=5000)).blockers == ()


def test_a_program_of_another_build(planned: PlannedRestore, host: HostState) -> None:
    libc = next(path for path in host.files if path.endswith("/libc.so.6"))
    told = only_blocker(judge_restore(planned, with_changed(host, libc, build_id="00ff")))
    assert told.startswith(f"file-replaced: {libc} is another build than at the checkpoint, since {CHANGED} (mapped by")
    assert file_of(planned.tree, libc).build_id in told
    assert judge_restore(planned, with_changed(host, libc, build_id="")).blockers == (), (
        "CRIU compares only where there are two"
    )


def test_a_file_with_another_mode(planned: PlannedRestore, host: HostState) -> None:
    told = only_blocker(judge_restore(planned, with_changed(host, PLAIN, mode=stat.S_IFREG | 0o4600)))
    assert told.startswith(f"file-mode: {PLAIN} has mode 4600 since {CHANGED}; at the checkpoint it had 06")
    assert told.endswith(PLAIN)
    told = only_blocker(judge_restore(planned, with_changed(host, RUN, mode=stat.S_IFDIR | 0o123)))
    assert "has mode 0123" in told


def test_a_file_of_another_kind(planned: PlannedRestore, host: HostState) -> None:
    told = only_blocker(judge_restore(planned, with_changed(host, PLAIN, mode=stat.S_IFDIR | 0o644, size=4096)))
    assert told.startswith(
        f"file-kind: {PLAIN} is a directory since {CHANGED}; at the checkpoint it was a regular file (fd "
    )
    assert "file of another kind" in only_blocker(judge_restore(planned, with_changed(host, PLAIN, mode=0)))


def test_written_after_the_checkpoint(planned: PlannedRestore, host: HostState) -> None:
    verdict = judge_restore(planned, with_changed(host, PLAIN, written=CREATED + timedelta(seconds=1)))
    assert (verdict.blockers, verdict.rewinds) == ((), ())
    (warning,) = verdict.warnings
    assert warning.key == "file-written"
    assert f"at {(CREATED + timedelta(seconds=1)).astimezone():%Y-%m-%d %H:%M:%S}" in warning.what
    assert judge_restore(planned, with_changed(host, PLAIN, written=CREATED)).warnings == ()
    assert judge_restore(planned, with_changed(host, RUN, written=CREATED + timedelta(days=1))).warnings == (), (
        "directories change"
    )


def test_a_remap_link_is_compared_like_the_file(planned: PlannedRestore, host: HostState) -> None:
    def link(file: RegularFile) -> RegularFile:
        return replace(file, remap=Remap(LINKED, 5, "/srv/link_remap.5"))

    linked = replace(planned, tree=with_file(planned.tree, PLAIN, link))
    files = host.files | {"/srv/link_remap.5": host.files[PLAIN]}
    assert judge_restore(linked, replace(host, files=files)).blockers == ()
    assert only_blocker(judge_restore(linked, host)).startswith("file-missing: /srv/link_remap.5 is missing")


def test_a_taken_port(planned: PlannedRestore, host: HostState) -> None:
    (listener,) = (socket for socket in planned.tree.listening if socket.source == Address("::1", 47002))
    told = only_blocker(judge_restore(planned, replace(host, refused={listener.id: "taken"})))
    assert told == "port-taken: TCP port [::1]:47002 is taken by another program: end it: ss -ltnp 'sport = :47002'"


def test_a_taken_datagram_port(planned: PlannedRestore, host: HostState) -> None:
    (listener,) = (socket for socket in planned.tree.listening if socket.source == Address("::1", 47002))
    datagram = replace(listener, type=DATAGRAM, protocol="udp", state="close", source=Address("127.0.0.1", 53))
    alone = replace(planned, tree=replace(planned.tree, files=(*without_sockets(planned.tree), datagram)))
    assert [(socket.id, use) for socket, use in bound_sockets(alone)] == [(listener.id, "datagram")]
    told = only_blocker(judge_restore(alone, replace(host, refused={listener.id: "taken"})))
    assert told == "port-taken: UDP port 127.0.0.1:53 is taken by another program: end it: ss -lunp 'sport = :53'"


def test_an_address_that_this_host_does_not_have(planned: PlannedRestore, host: HostState) -> None:
    (listener,) = (socket for socket in planned.tree.listening if socket.source == Address("::1", 47002))
    elsewhere = replace(listener, source=Address("192.0.2.1", 80))
    moved = replace(planned, tree=replace(planned.tree, files=(*without_sockets(planned.tree), elsewhere)))
    told = only_blocker(judge_restore(moved, replace(host, refused={listener.id: "missing"})))
    assert told.startswith("address-missing: this host does not have the TCP address 192.0.2.1:80")
    assert told.endswith("ip addr add 192.0.2.1 dev INTERFACE")


def test_connections_need_their_address_only_if_they_are_kept(planned: PlannedRestore) -> None:
    established = {socket.id for socket in planned.tree.established}
    assert established
    assert not established & {socket.id for socket, _ in bound_sockets(planned)}
    kept = {socket.id: use for socket, use in bound_sockets(replace(planned, keeps_connections=True))}
    assert {kept[socket] for socket in established} == {"connection"}


def test_a_tree_with_its_own_network_binds_nothing_here(planned: PlannedRestore) -> None:
    ids = planned.tree.root.ids
    assert ids is not None
    other = replace(ids, namespaces=replace(ids.namespaces, net=ids.namespaces.net + 1))
    apart = replace(planned.tree, processes=(replace(planned.tree.root, ids=other), *planned.tree.processes[1:]))
    assert list(bound_sockets(planned))
    assert list(bound_sockets(replace(planned, tree=apart))) == []


UPGRADED = Package("libc6", "2.42-1", CREATED + timedelta(days=1), before="2.41-4")


@pytest.mark.parametrize("grown", ["refuse", "rewind"])
@pytest.mark.parametrize("change", [{"build_id": "00ff"}, {"size": 10**9}, {"size": 5}])
def test_an_upgraded_package(planned: PlannedRestore, host: HostState, grown: str, change: dict[str, object]) -> None:
    """For any change: the file is not cut back, and the message names the old version."""
    assert grown in ("refuse", "rewind")
    chosen = replace(planned, grown=grown)
    libc = next(path for path in host.files if path.endswith("/libc.so.6"))
    host = with_changed(host, libc, **change)
    assert changed_paths(chosen, host) == (libc,)
    told = only_blocker(judge_restore(chosen, replace(host, packages={libc: UPGRADED})))
    when = f"{UPGRADED.since.astimezone():%Y-%m-%d %H:%M:%S}"
    assert told.startswith(f"file-upgraded: {libc} changed since the checkpoint: package libc6 became 2.42-1 at ")
    assert f" at {when} (mapped by " in told
    assert told.endswith("install libc6 2.41-4 again")
    nameless = replace(UPGRADED, before="")
    assert only_blocker(judge_restore(chosen, replace(host, packages={libc: nameless}))).endswith(
        "install libc6 as it was at the checkpoint again"
    )


def test_a_change_after_the_upgrade_of_a_package_is_no_upgrade(planned: PlannedRestore, host: HostState) -> None:
    libc = next(path for path in host.files if path.endswith("/libc.so.6"))
    older = replace(UPGRADED, since=CREATED - timedelta(days=1))
    told = only_blocker(
        judge_restore(planned, replace(with_changed(host, libc, build_id="00ff"), packages={libc: older}))
    )
    assert told.startswith("file-replaced: ")


def test_packages_are_needed_only_for_changed_files(planned: PlannedRestore, host: HostState) -> None:
    assert changed_paths(planned, host) == ()
    assert changed_paths(planned, with_changed(host, PLAIN, written=CREATED + timedelta(days=1))) == ()
    assert changed_paths(planned, replace(host, files=host.files | {PLAIN: None})) == (PLAIN,)


def test_a_terminal_outside_the_tree_is_needed(planned: PlannedRestore, host: HostState) -> None:
    """The images have both sides of a pty; without the master it is a terminal outside the tree."""
    slaves = tuple(end for end in planned.tree.terminals if not end.is_master)
    outside = replace(planned, tree=replace(planned.tree, terminals=slaves))
    assert judge_restore(outside, host).needs_terminal
    assert only_blocker(judge_restore(outside, host)).startswith("terminal: ")
    there = judge_restore(replace(outside, has_terminal=True), host)
    assert (there.blockers, there.needs_terminal) == ((), True)


@pytest.mark.parametrize(("uid", "owner", "refused"), [(0, 0, 0), (33, 33, 0), (33, 0, 1), (33, 34, 1), (33, None, 0)])
def test_a_program_gets_no_terminal_of_another_user(
    planned: PlannedRestore, host: HostState, uid: int, owner: int | None, refused: int
) -> None:
    """It could type commands that the shell of the terminal's owner would run."""
    slaves = tuple(end for end in planned.tree.terminals if not end.is_master)
    credentials = Credentials(uid, uid, uid, uid, ())
    threads = tuple(
        replace(thread, core=replace(thread.core, credentials=credentials)) for thread in planned.tree.root.threads
    )
    tree = replace(planned.tree, terminals=slaves, processes=(replace(planned.tree.root, threads=threads),))
    found = judge_restore(replace(planned, tree=tree, has_terminal=True, terminal_owner=owner), host).blockers
    assert [finding.key for finding in found if finding.key.startswith("terminal")] == ["terminal-of-another"] * refused


@pytest.mark.parametrize(
    ("terminal", "needed"),
    [
        (TerminalInfo(6, "pty", 0, 0, 0, 3), True),
        (TerminalInfo(6, "pty", 0, 0, 0, 3, is_hung_up=True), False),
        (TerminalInfo(5, "current", 0, 0, 0, None), True),
        (TerminalInfo(5, "current", 100, 100, 0, None), False),
        (TerminalInfo(5, "console", 0, 0, 0, None), False),
        (TerminalInfo(5, "virtual console", 0, 0, 0, None), False),
    ],
)
def test_only_a_terminal_outside_is_needed(
    planned: PlannedRestore, host: HostState, terminal: TerminalInfo, needed: bool
) -> None:
    """Not a console (it has a name), a terminal whose session is in the tree, or one that was hung up."""
    tree = replace(planned.tree, terminals=(terminal,))
    assert judge_restore(replace(planned, tree=tree), host).needs_terminal == needed


def test_pipes_to_a_process_outside(planned: PlannedRestore, host: HostState) -> None:
    ends = (
        Pipe(901, 61, os.O_RDONLY),
        Pipe(902, 62, os.O_WRONLY | os.O_NONBLOCK),
        Pipe(903, 62, os.O_WRONLY),
        Pipe(904, 63, os.O_RDWR),
        Pipe(905, 64, os.O_RDONLY),
        Pipe(906, 64, os.O_WRONLY),
    )
    piped = replace(planned, tree=replace(planned.tree, files=(*planned.tree.files, *ends)))
    assert judge_restore(piped, host).outside_pipes == (OutsidePipe(62, errors=False),)
    assert judge_restore(replace(piped, closed_pipes=frozenset({62})), host).outside_pipes == ()


def test_all_blockers_are_reported_at_once(planned: PlannedRestore, host: HostState) -> None:
    worse = with_changed(with_changed(host, PLAIN, mode=stat.S_IFREG | 0o600, size=1), LOG, size=99)
    worse = replace(worse, owners=(IdUser(7993, "PID", 7993, 1, "x", "running"),))
    told = [finding.key for finding in judge_restore(planned, worse).blockers]
    assert sorted(told) == ["file-mode", "file-shrunk", "log-grown", "pid-taken"]


def test_utc_datetime() -> None:
    assert utc_datetime(CREATED.timestamp()) == CREATED


def test_thousands_of_grown_files_are_judged_quickly(planned: PlannedRestore, host: HostState) -> None:
    """The open files of the tree are searched once, not once for each file."""
    first = next(file for file in needed_files(planned.tree) if file.size and not file.build_id)
    many = [replace(first, id=1_000_000 + number, path=f"/many/{number}", size=0) for number in range(10_000)]
    logs = [
        replace(file, id=file.id + 20_000, path=f"{file.path}.log", size=None, flags=os.O_WRONLY | os.O_APPEND)
        for file in many
    ]
    tree = replace(planned.tree, files=(*planned.tree.files, *many, *logs))
    as_it_was = host.files[needed_path(first)]
    assert as_it_was is not None
    grown = replace(as_it_was, size=5)
    files = {**host.files, **{file.path: grown for file in (*many, *logs)}}
    asked = replace(planned, tree=tree, append_sizes={**planned.append_sizes, **{file.path: 1 for file in logs}})
    began = time.process_time()
    found = judge_restore(asked, replace(host, files=files))
    assert time.process_time() - began < 10
    assert len(found.blockers) == 20_000
