"""What stands against a restore, from a real tree's images and hosts written by hand."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from crckpt.host.disk.packages import Package
from crckpt.host.proc import Owner
from crckpt.host.proc.writers import Writer
from crckpt.images.core import Credentials
from crckpt.images.files import OpenFile
from crckpt.images.ids import KernelIds
from crckpt.images.regular import GHOST, LINKED, PROCESS, RegularFile, Remap
from crckpt.images.sockets import DATAGRAM, Address, InetSocket
from crckpt.images.special import Pipe, TerminalInfo
from crckpt.images.tree import ImageTree
from crckpt.model import moment
from crckpt.preflight.needs import Disk, Here
from crckpt.preflight.restore import (
    UNCONDITIONAL,
    FileNow,
    Now,
    OutsidePipe,
    Rewind,
    Verdict,
    Wanted,
    bound,
    changed,
    judge,
    numbers,
    paths,
    required_path,
    uses,
)

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN = "/tmp/crckpt-images/run"
LOG, PLAIN = f"{RUN}/log", f"{RUN}/plain"
CHANGED_AFTER = timedelta(seconds=50)
CHANGED = f"{(CREATED + CHANGED_AFTER).astimezone():%Y-%m-%d %H:%M:%S}"
HERE = Here(
    arch="x86_64",
    cpu_features=frozenset({"avx2", "sse2", "hypervisor"}),
    missing=(),
    pid_limit=1 << 22,
    tasks=None,
    memory=1 << 20,
    free_memory=1 << 30,
    disks=(Disk("/srv", 1 << 20, 1 << 30),),
    huge_pages=(),
)


@pytest.fixture
def wanted(tree: ImageTree) -> Wanted:
    """A restore of it, with nothing chosen; its log had 11 bytes."""
    return Wanted(
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
def now(tree: ImageTree) -> Now:
    """A host on which everything is as it was."""
    return Now(
        owners=(),
        files={
            required_path(file): FileNow(
                size=file.size if file.size is not None else 11,
                mode=file.mode if file.mode is not None else stat.S_IFREG | 0o644,
                written=CREATED - timedelta(hours=1),
                changed=CREATED + CHANGED_AFTER,
                build_id=file.build_id,
            )
            for file in paths(tree)
        },
        refused={},
        here=HERE,
    )


def with_changed(now: Now, path: str, **changes: object) -> Now:
    """This host with one file changed."""
    file = now.files[path]
    assert file is not None
    return replace(now, files=now.files | {path: replace(file, **changes)})


def without_sockets(tree: ImageTree) -> tuple[OpenFile, ...]:
    return tuple(file for file in tree.files if not isinstance(file, InetSocket))


def file_of(tree: ImageTree, path: str) -> RegularFile:
    return next(file for file in tree.regular_files if required_path(file) == path)


def with_file(tree: ImageTree, path: str, change: Callable[[RegularFile], RegularFile]) -> ImageTree:
    """The tree with one of its files changed."""
    return replace(
        tree,
        files=tuple(
            change(file) if isinstance(file, RegularFile) and required_path(file) == path else file
            for file in tree.files
        ),
    )


def only_blocker(verdict: Verdict) -> str:
    (finding,) = verdict.blockers
    assert (verdict.warnings, verdict.rewinds) == ((), ())
    assert "?" not in str(finding)
    return f"{finding.key}: {finding}"


@pytest.mark.parametrize("ours", ["4.1.1", "3.17.1", "4.1-rc1"])
def test_an_older_criu_is_refused(wanted: Wanted, now: Now, ours: str) -> None:
    said = only_blocker(judge(replace(wanted, crius=("4.2.1", ours)), now))
    assert said.startswith(f"older-criu: CRIU 4.2.1 made this checkpoint, and this one, {ours}, ")


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
def test_one_that_is_not_known_to_be_older_may_restore(wanted: Wanted, now: Now, crius: tuple[str, str]) -> None:
    assert judge(replace(wanted, crius=crius), now).blockers == ()


def test_where_everything_is_as_it_was(wanted: Wanted, now: Now) -> None:
    assert judge(wanted, now) == Verdict((), (), (), (), needs_terminal=False)


def test_every_number_of_the_tree_is_asked_for(tree: ImageTree) -> None:
    asked = numbers(tree)
    assert asked >= {process.pid for process in tree.processes}
    assert asked >= {thread.tid for process in tree.processes for thread in process.threads}
    group = replace(tree.processes[1], pgid=4000)
    outside = replace(tree, processes=(replace(tree.root, sid=0), group, *tree.processes[2:]))
    assert 4000 in numbers(outside), "the leader of this group has ended"
    assert 0 not in numbers(outside), "0 stands for a session outside the pid namespace"


def test_the_session_and_the_group_of_the_shell_may_be_taken(tree: ImageTree) -> None:
    """The tree gets those of crckpt."""
    asked = numbers(tree)
    others = (replace(process, sid=5000) for process in tree.processes[1:])
    outside = replace(tree, processes=(replace(tree.root, pgid=5001, sid=5000), *others))
    assert numbers(outside) == asked


def test_each_path_is_asked_for_once_and_by_the_file_whose_size_is_known(tree: ImageTree) -> None:
    asked = [required_path(file) for file in paths(tree)]
    assert len(asked) == len(set(asked))
    assert {LOG, PLAIN, RUN, "/", f"{RUN}/shared-map"} <= set(asked)
    appended = replace(file_of(tree, PLAIN), id=10**6, size=None, flags=os.O_WRONLY | os.O_APPEND)
    for files in ((appended, *tree.files), (*tree.files, appended)):
        (chosen,) = (file for file in paths(replace(tree, files=files)) if file.path == PLAIN)
        assert chosen.size == 100


def test_deleted_files_are_brought_along(tree: ImageTree) -> None:
    file = file_of(tree, PLAIN)
    assert required_path(replace(file, remap=Remap(GHOST, 5))) == ""
    assert required_path(replace(file, remap=Remap(PROCESS, 5))) == ""
    assert required_path(replace(file, remap=Remap(LINKED, 5, "/srv/link_remap.5"))) == "/srv/link_remap.5"


@pytest.mark.parametrize(
    "change", [{"path": "/proc/5/stat"}, {"path": "/dev/pts/3"}, {"path": "pipe:[5]"}, {"external": True}]
)
def test_what_needs_not_be_there(tree: ImageTree, change: dict[str, object]) -> None:
    assert required_path(replace(file_of(tree, PLAIN), **change)) == ""


def test_a_tree_with_its_own_mounts_brings_its_files(wanted: Wanted, now: Now) -> None:
    ids = wanted.tree.root.ids
    assert ids is not None
    other = KernelIds(ids.vm, ids.files, ids.fs, ids.sighand, replace(ids.namespaces, mnt=ids.namespaces.mnt + 1))
    apart = replace(wanted.tree, processes=(replace(wanted.tree.root, ids=other), *wanted.tree.processes[1:]))
    assert paths(apart) == ()
    assert judge(replace(wanted, tree=apart), replace(now, files={})).blockers == ()


def test_another_user_namespace_stands_against_it(wanted: Wanted, now: Now) -> None:
    ids = wanted.tree.root.ids
    assert ids is not None
    other = replace(ids, namespaces=replace(ids.namespaces, user=ids.namespaces.user + 1))
    apart = replace(wanted.tree, processes=(replace(wanted.tree.root, ids=other), *wanted.tree.processes[1:]))
    (blocker,) = judge(replace(wanted, tree=apart), now).blockers
    assert blocker.key in UNCONDITIONAL
    assert "had its own user namespace at the dump" in blocker.what


def test_uses_name_process_and_way(tree: ImageTree) -> None:
    used = uses(tree)
    assert used[file_of(tree, LOG).id].endswith(f"of python3, PID {tree.root.pid}")
    assert used[file_of(tree, LOG).id].startswith("fd ")
    assert used[file_of(tree, f"{RUN}/private-map").id] == f"mapped by python3, PID {tree.root.pid}"
    assert tree.root.exe is not None
    assert tree.root.root is not None
    assert used[tree.root.exe.id].endswith(f"python3, PID {tree.root.pid}")
    assert used[tree.root.root.id] == f"root directory of python3, PID {tree.root.pid}"
    assert {file.id for file in paths(tree)} <= used.keys()


@pytest.mark.parametrize("role", ["PID", "thread", "group", "session"])
def test_numbers_that_are_taken(wanted: Wanted, now: Now, role: str) -> None:
    taken = replace(now, owners=(Owner(7993, role, 41, 1, "nginx", "sleeping"),))
    assert judge(wanted, taken).is_in_use
    told = only_blocker(judge(wanted, taken))
    assert told.startswith(f"pid-taken: {role} 7993 is taken by nginx (PID 41)")
    assert judge(replace(wanted, new_pid_namespace=True), taken).blockers == ()


def test_a_number_that_crckpt_itself_got(wanted: Wanted, now: Now) -> None:
    """Whoever is told to end it would look for what has gone by then."""
    ours = replace(now, us=7993, owners=(Owner(7993, "PID", 7993, 1, "crckpt", "running"),))
    assert "type it again" in only_blocker(judge(wanted, ours))


def test_a_process_is_told_once_for_all_its_threads(wanted: Wanted, now: Now) -> None:
    threads = tuple(Owner(number, "thread", 7993, 1, "x", "sleeping") for number in (7996, 7997))
    other = Owner(7998, "group", 41, 1, "y", "sleeping")
    verdict = judge(wanted, replace(now, owners=(Owner(7993, "PID", 7993, 1, "x", "sleeping"), *threads, other)))
    assert [finding.what.split(" is ")[0] for finding in verdict.blockers] == ["PID 7993", "group 7998"]
    assert len(judge(wanted, replace(now, owners=threads)).blockers) == 2


def test_a_number_that_nobody_has_reaped(wanted: Wanted, now: Now) -> None:
    told = only_blocker(judge(wanted, replace(now, owners=(Owner(7993, "PID", 7993, 40, "old", "zombie"),))))
    assert told.startswith("pid-unreaped: PID 7993 is taken by old, which has ended, but which its parent 40 has not")


def test_a_missing_file(wanted: Wanted, now: Now) -> None:
    for files in (now.files | {PLAIN: None}, {path: file for path, file in now.files.items() if path != PLAIN}):
        told = only_blocker(judge(wanted, replace(now, files=files)))
        assert told.startswith(f"file-missing: {PLAIN} is missing (fd ")


@pytest.mark.parametrize("grown", ["refuse", "keep", "rewind"])
@pytest.mark.parametrize("path", [LOG, PLAIN])
def test_a_file_that_shrank(wanted: Wanted, now: Now, grown: str, path: str) -> None:
    assert grown in ("refuse", "keep", "rewind")
    chosen = replace(wanted, grown=grown)
    size = 11 if path == LOG else 100
    told = only_blocker(judge(chosen, with_changed(now, path, size=size - 1)))
    assert told.startswith(
        f"file-shrunk: {path} has {size - 1} bytes since {CHANGED}, at the checkpoint it had {size} (fd "
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
    wanted: Wanted,
    now: Now,
    path: str,
    grown: str,
    blockers: list[str],
    warnings: list[str],
    rewinds: tuple[Rewind, ...],
) -> None:
    verdict = judge(replace(wanted, grown=grown), with_changed(now, path, size=500))
    assert [finding.key for finding in verdict.blockers] == blockers
    assert [finding.key for finding in verdict.warnings] == warnings
    assert verdict.rewinds == rewinds
    (finding,) = (*verdict.blockers, *verdict.warnings)
    assert "to 500 bytes" in finding.what
    assert (f"last at {CHANGED}" in finding.what) == bool(verdict.blockers)
    assert "?" not in str(finding)


def test_no_file_is_cut_back_under_its_writer(wanted: Wanted, now: Now) -> None:
    """It may be the program itself, whose PID is no hindrance in a namespace of its own."""
    chosen = replace(wanted, grown="rewind", new_pid_namespace=True)
    verdict = judge(chosen, replace(with_changed(now, PLAIN, size=500), writers={PLAIN: Writer(41, "nginx")}))
    assert (verdict.rewinds, verdict.is_in_use) == ((), True)
    (finding,) = verdict.blockers
    assert "nginx (PID 41) has it open for writing" in finding.what


def test_no_file_is_cut_back_through_a_link(wanted: Wanted, now: Now) -> None:
    """Its target is not the file that was meant."""
    verdict = judge(replace(wanted, grown="rewind"), with_changed(now, PLAIN, size=500, is_linked=True))
    assert ([finding.key for finding in verdict.blockers], verdict.rewinds) == (["file-linked"], ())


@pytest.mark.parametrize("grown", ["refuse", "rewind"])
def test_no_program_is_cut_back(wanted: Wanted, now: Now, grown: str) -> None:
    """A longer one is another build, also if none has an id."""
    assert grown in ("refuse", "rewind")
    programs = {file.path for file in paths(wanted.tree) if file.build_id}
    assert len(programs) > 1
    for path in programs:
        file = now.files[path]
        assert file is not None
        verdict = judge(replace(wanted, grown=grown), with_changed(now, path, size=file.size + 1))
        assert verdict.rewinds == ()
        (finding,) = verdict.blockers
        assert (finding.key, verdict.is_in_use) == ("program-grown", False)


def test_a_log_of_which_only_its_position_is_known_to_be_later(wanted: Wanted, now: Now) -> None:
    """The size was seen before the freeze; what was appended until then moved the position."""
    early = replace(wanted, append_sizes={LOG: 4})
    assert judge(early, now).blockers == ()
    (grown,) = judge(early, with_changed(now, LOG, size=12)).blockers
    assert "from 11 to 12 bytes" in grown.what


def test_a_log_whose_size_nobody_saw_is_taken_as_it_is(wanted: Wanted, now: Now) -> None:
    assert judge(replace(wanted, append_sizes={}), with_changed(now, LOG, size=5000)).blockers == ()


def test_a_program_of_another_build(wanted: Wanted, now: Now) -> None:
    libc = next(path for path in now.files if path.endswith("/libc.so.6"))
    told = only_blocker(judge(wanted, with_changed(now, libc, build_id="00ff")))
    assert told.startswith(f"file-replaced: {libc} is another build than at the checkpoint, since {CHANGED} (mapped by")
    assert file_of(wanted.tree, libc).build_id in told
    assert judge(wanted, with_changed(now, libc, build_id="")).blockers == (), "CRIU compares only where there are two"


def test_another_mode(wanted: Wanted, now: Now) -> None:
    told = only_blocker(judge(wanted, with_changed(now, PLAIN, mode=stat.S_IFREG | 0o4600)))
    assert told.startswith(f"file-mode: {PLAIN} has mode 4600 since {CHANGED}, at the checkpoint it had 06")
    assert told.endswith(PLAIN)
    told = only_blocker(judge(wanted, with_changed(now, RUN, mode=stat.S_IFDIR | 0o123)))
    assert "has mode 0123" in told


def test_another_kind_of_file(wanted: Wanted, now: Now) -> None:
    told = only_blocker(judge(wanted, with_changed(now, PLAIN, mode=stat.S_IFDIR | 0o644, size=4096)))
    assert told.startswith(
        f"file-kind: {PLAIN} is a directory since {CHANGED}, at the checkpoint it was a regular file (fd "
    )
    assert "file of another kind" in only_blocker(judge(wanted, with_changed(now, PLAIN, mode=0)))


def test_written_after_the_checkpoint(wanted: Wanted, now: Now) -> None:
    verdict = judge(wanted, with_changed(now, PLAIN, written=CREATED + timedelta(seconds=1)))
    assert (verdict.blockers, verdict.rewinds) == ((), ())
    (warning,) = verdict.warnings
    assert warning.key == "file-written"
    assert f"at {(CREATED + timedelta(seconds=1)).astimezone():%Y-%m-%d %H:%M:%S}" in warning.what
    assert judge(wanted, with_changed(now, PLAIN, written=CREATED)).warnings == ()
    assert judge(wanted, with_changed(now, RUN, written=CREATED + timedelta(days=1))).warnings == (), (
        "directories change"
    )


def test_a_link_that_criu_left_is_compared_like_the_file(wanted: Wanted, now: Now) -> None:
    def link(file: RegularFile) -> RegularFile:
        return replace(file, remap=Remap(LINKED, 5, "/srv/link_remap.5"))

    linked = replace(wanted, tree=with_file(wanted.tree, PLAIN, link))
    files = now.files | {"/srv/link_remap.5": now.files[PLAIN]}
    assert judge(linked, replace(now, files=files)).blockers == ()
    assert only_blocker(judge(linked, now)).startswith("file-missing: /srv/link_remap.5 is missing")


def test_a_port_that_is_taken(wanted: Wanted, now: Now) -> None:
    (listener,) = (socket for socket in wanted.tree.listening if socket.source == Address("::1", 47002))
    told = only_blocker(judge(wanted, replace(now, refused={listener.id: "taken"})))
    assert told == "port-taken: TCP port [::1]:47002 is taken by another program: end it: ss -ltnp 'sport = :47002'"


def test_a_datagram_port_that_is_taken(wanted: Wanted, now: Now) -> None:
    (listener,) = (socket for socket in wanted.tree.listening if socket.source == Address("::1", 47002))
    datagram = replace(listener, type=DATAGRAM, protocol="udp", state="close", source=Address("127.0.0.1", 53))
    alone = replace(wanted, tree=replace(wanted.tree, files=(*without_sockets(wanted.tree), datagram)))
    assert [(socket.id, use) for socket, use in bound(alone)] == [(listener.id, "datagram")]
    told = only_blocker(judge(alone, replace(now, refused={listener.id: "taken"})))
    assert told == "port-taken: UDP port 127.0.0.1:53 is taken by another program: end it: ss -lunp 'sport = :53'"


def test_an_address_that_this_host_does_not_have(wanted: Wanted, now: Now) -> None:
    (listener,) = (socket for socket in wanted.tree.listening if socket.source == Address("::1", 47002))
    elsewhere = replace(listener, source=Address("192.0.2.1", 80))
    moved = replace(wanted, tree=replace(wanted.tree, files=(*without_sockets(wanted.tree), elsewhere)))
    told = only_blocker(judge(moved, replace(now, refused={listener.id: "missing"})))
    assert told.startswith("address-missing: TCP address 192.0.2.1:80 is not one of this host's")
    assert told.endswith("ip addr add 192.0.2.1 dev INTERFACE")


def test_connections_need_their_address_only_if_they_go_on(wanted: Wanted) -> None:
    established = {socket.id for socket in wanted.tree.established}
    assert established
    assert not established & {socket.id for socket, _ in bound(wanted)}
    kept = {socket.id: use for socket, use in bound(replace(wanted, keeps_connections=True))}
    assert {kept[socket] for socket in established} == {"connection"}


def test_a_tree_with_its_own_network_binds_nothing_here(wanted: Wanted) -> None:
    ids = wanted.tree.root.ids
    assert ids is not None
    other = replace(ids, namespaces=replace(ids.namespaces, net=ids.namespaces.net + 1))
    apart = replace(wanted.tree, processes=(replace(wanted.tree.root, ids=other), *wanted.tree.processes[1:]))
    assert list(bound(wanted))
    assert list(bound(replace(wanted, tree=apart))) == []


UPGRADED = Package("libc6", "2.42-1", CREATED + timedelta(days=1), before="2.41-4")


@pytest.mark.parametrize("grown", ["refuse", "rewind"])
@pytest.mark.parametrize("change", [{"build_id": "00ff"}, {"size": 10**9}, {"size": 5}])
def test_a_file_of_a_package_that_was_upgraded(wanted: Wanted, now: Now, grown: str, change: dict[str, object]) -> None:
    """Whatever became of it: it is not cut back, and the version that it had is named."""
    assert grown in ("refuse", "rewind")
    chosen = replace(wanted, grown=grown)
    libc = next(path for path in now.files if path.endswith("/libc.so.6"))
    host = with_changed(now, libc, **change)
    assert changed(chosen, host) == (libc,)
    told = only_blocker(judge(chosen, replace(host, packages={libc: UPGRADED})))
    when = f"{UPGRADED.since.astimezone():%Y-%m-%d %H:%M:%S}"
    assert told.startswith(
        f"file-upgraded: {libc} is not what it was at the checkpoint: package libc6 became 2.42-1 at "
    )
    assert f" at {when} (mapped by " in told
    assert told.endswith("install libc6 2.41-4 again")
    nameless = replace(UPGRADED, before="")
    assert only_blocker(judge(chosen, replace(host, packages={libc: nameless}))).endswith(
        "install libc6 as it was at the checkpoint again"
    )


def test_a_file_of_a_package_that_is_older_was_changed_by_somebody_else(wanted: Wanted, now: Now) -> None:
    libc = next(path for path in now.files if path.endswith("/libc.so.6"))
    older = replace(UPGRADED, since=CREATED - timedelta(days=1))
    told = only_blocker(judge(wanted, replace(with_changed(now, libc, build_id="00ff"), packages={libc: older})))
    assert told.startswith("file-replaced: ")


def test_packages_are_asked_for_only_where_something_changed(wanted: Wanted, now: Now) -> None:
    assert changed(wanted, now) == ()
    assert changed(wanted, with_changed(now, PLAIN, written=CREATED + timedelta(days=1))) == ()
    assert changed(wanted, replace(now, files=now.files | {PLAIN: None})) == (PLAIN,)


def test_a_terminal_of_somebody_else_is_needed(wanted: Wanted, now: Now) -> None:
    """The images have a pty with both sides; without the master it is a terminal outside."""
    slaves = tuple(end for end in wanted.tree.terminals if not end.is_master)
    outside = replace(wanted, tree=replace(wanted.tree, terminals=slaves))
    assert judge(outside, now).needs_terminal
    assert only_blocker(judge(outside, now)).startswith("terminal: ")
    there = judge(replace(outside, has_terminal=True), now)
    assert (there.blockers, there.needs_terminal) == ((), True)


@pytest.mark.parametrize(("uid", "owner", "refused"), [(0, 0, 0), (33, 33, 0), (33, 0, 1), (33, 34, 1), (33, None, 0)])
def test_a_program_gets_no_terminal_of_another_user(
    wanted: Wanted, now: Now, uid: int, owner: int | None, refused: int
) -> None:
    """It could type commands there, which the shell of the terminal's owner would run."""
    slaves = tuple(end for end in wanted.tree.terminals if not end.is_master)
    credentials = Credentials(uid, uid, uid, uid, ())
    threads = tuple(
        replace(thread, core=replace(thread.core, credentials=credentials)) for thread in wanted.tree.root.threads
    )
    tree = replace(wanted.tree, terminals=slaves, processes=(replace(wanted.tree.root, threads=threads),))
    found = judge(replace(wanted, tree=tree, has_terminal=True, terminal_owner=owner), now).blockers
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
def test_only_a_terminal_outside_is_needed(wanted: Wanted, now: Now, terminal: TerminalInfo, needed: bool) -> None:
    """Not a console, which has a name, nor the session's own where that is in the tree, nor one that was hung up."""
    tree = replace(wanted.tree, terminals=(terminal,))
    assert judge(replace(wanted, tree=tree), now).needs_terminal == needed


def test_pipes_to_somebody_outside(wanted: Wanted, now: Now) -> None:
    ends = (
        Pipe(901, 61, os.O_RDONLY),
        Pipe(902, 62, os.O_WRONLY | os.O_NONBLOCK),
        Pipe(903, 62, os.O_WRONLY),
        Pipe(904, 63, os.O_RDWR),
        Pipe(905, 64, os.O_RDONLY),
        Pipe(906, 64, os.O_WRONLY),
    )
    piped = replace(wanted, tree=replace(wanted.tree, files=(*wanted.tree.files, *ends)))
    assert judge(piped, now).outside_pipes == (OutsidePipe(62, errors=False),)
    assert judge(replace(piped, closed_pipes=frozenset({62})), now).outside_pipes == ()


def test_all_that_is_wrong_is_told_at_once(wanted: Wanted, now: Now) -> None:
    worse = with_changed(with_changed(now, PLAIN, mode=stat.S_IFREG | 0o600, size=1), LOG, size=99)
    worse = replace(worse, owners=(Owner(7993, "PID", 7993, 1, "x", "running"),))
    told = [finding.key for finding in judge(wanted, worse).blockers]
    assert sorted(told) == ["file-mode", "file-shrunk", "log-grown", "pid-taken"]


def test_moment() -> None:
    assert moment(CREATED.timestamp()) == CREATED


def test_thousands_of_files_that_grew_are_judged_in_no_time(wanted: Wanted, now: Now) -> None:
    """All that the tree has open is looked through once, and not once for each of them."""
    first = next(file for file in paths(wanted.tree) if file.size and not file.build_id)
    many = [replace(first, id=1_000_000 + number, path=f"/many/{number}", size=0) for number in range(10_000)]
    logs = [
        replace(file, id=file.id + 20_000, path=f"{file.path}.log", size=None, flags=os.O_WRONLY | os.O_APPEND)
        for file in many
    ]
    tree = replace(wanted.tree, files=(*wanted.tree.files, *many, *logs))
    as_it_was = now.files[required_path(first)]
    assert as_it_was is not None
    grown = replace(as_it_was, size=5)
    files = {**now.files, **{file.path: grown for file in (*many, *logs)}}
    asked = replace(wanted, tree=tree, append_sizes={**wanted.append_sizes, **{file.path: 1 for file in logs}})
    began = time.process_time()
    found = judge(asked, replace(now, files=files))
    assert time.process_time() - began < 10
    assert len(found.blockers) == 20_000
