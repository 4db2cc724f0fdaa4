"""Files that a restore needs: missing, changed, grown or replaced since the dump."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from growth import grows_linearly
from msgspec.structs import replace
from restore_plans import CHANGED, CREATED, LOG, PLAIN, RUN, only_blocker, with_changed

from crckpt.host.disk.checked_files import digest_head
from crckpt.host.disk.packages import Package
from crckpt.host.proc.file_users import FileWriter
from crckpt.images.processes import KernelIds
from crckpt.images.regfile import GHOST, LINKED, PROCESS, RegularFile, Remap
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.checks import RestoreVerdict, judge_restore
from crckpt.preflight.restore.files import file_uses, find_changed_paths, find_needed_files, find_needed_path
from crckpt.preflight.restore.host import HostState, PlannedRestore


def file_of(tree: ImageTree, path: str) -> RegularFile:
    return next(file for file in tree.regular_files if find_needed_path(file) == path)


def with_file(tree: ImageTree, path: str, change: Callable[[RegularFile], RegularFile]) -> ImageTree:
    """Return the tree with one of its files changed."""
    return replace(
        tree,
        files=tuple(
            change(file) if isinstance(file, RegularFile) and find_needed_path(file) == path else file
            for file in tree.files
        ),
    )


def test_each_path_is_needed_once_preferably_with_its_size(tree: ImageTree) -> None:
    asked = [find_needed_path(file) for file in find_needed_files(tree)]
    assert len(asked) == len(set(asked))
    assert {LOG, PLAIN, RUN, "/", f"{RUN}/shared-map"} <= set(asked)
    appended = replace(file_of(tree, PLAIN), id=10**6, size=None, flags=os.O_WRONLY | os.O_APPEND)
    for files in ((appended, *tree.files), (*tree.files, appended)):
        (chosen,) = (file for file in find_needed_files(replace(tree, files=files)) if file.path == PLAIN)
        assert chosen.size == 100


def test_deleted_files_need_no_existing_path(tree: ImageTree) -> None:
    file = file_of(tree, PLAIN)
    assert find_needed_path(replace(file, remap=Remap(GHOST, 5))) == ""
    assert find_needed_path(replace(file, remap=Remap(PROCESS, 5))) == ""
    assert find_needed_path(replace(file, remap=Remap(LINKED, 5, "/srv/link_remap.5"))) == "/srv/link_remap.5"


@pytest.mark.parametrize(
    "change", [{"path": "/proc/5/stat"}, {"path": "/dev/pts/3"}, {"path": "pipe:[5]"}, {"external": True}]
)
def test_paths_that_criu_does_not_open_need_not_exist(tree: ImageTree, change: dict[str, object]) -> None:
    assert find_needed_path(replace(file_of(tree, PLAIN), **change)) == ""


def test_tree_with_its_own_mounts_brings_its_files(planned_restore: PlannedRestore, host: HostState) -> None:
    ids = planned_restore.tree.root.ids
    assert ids is not None
    other = KernelIds(ids.files, replace(ids.namespaces, mnt=ids.namespaces.mnt + 1))
    in_own_namespace = replace(
        planned_restore.tree,
        processes=(replace(planned_restore.tree.root, ids=other), *planned_restore.tree.processes[1:]),
    )
    assert find_needed_files(in_own_namespace) == ()
    assert judge_restore(replace(planned_restore, tree=in_own_namespace), replace(host, files={})).blockers == ()


def test_uses_of_a_file_name_its_process_and_descriptor(tree: ImageTree) -> None:
    used = file_uses(tree)
    assert used[file_of(tree, LOG).id].endswith(f"of python3, PID {tree.root.pid}")
    assert used[file_of(tree, LOG).id].startswith("fd ")
    assert used[file_of(tree, f"{RUN}/private-map").id] == f"mapped by python3, PID {tree.root.pid}"
    assert tree.root.exe is not None
    assert tree.root.root is not None
    assert used[tree.root.exe.id].endswith(f"python3, PID {tree.root.pid}")
    assert used[tree.root.root.id] == f"root directory of python3, PID {tree.root.pid}"
    assert {file.id for file in find_needed_files(tree)} <= used.keys()


def test_missing_file_is_a_blocker(planned_restore: PlannedRestore, host: HostState) -> None:
    for files in (host.files | {PLAIN: None}, {path: file for path, file in host.files.items() if path != PLAIN}):
        blocker = only_blocker(judge_restore(planned_restore, replace(host, files=files)))
        assert blocker.startswith(f"file-missing: {PLAIN} is missing (fd ")


@pytest.mark.parametrize("grown", ["refuse", "keep", "rewind"])
def test_shrunk_file_is_a_blocker(planned_restore: PlannedRestore, host: HostState, grown: str) -> None:
    assert grown in ("refuse", "keep", "rewind")
    chosen = replace(planned_restore, grown=grown)
    blocker = only_blocker(judge_restore(chosen, with_changed(host, PLAIN, size=99)))
    assert blocker.startswith(f"file-shrunk: {PLAIN} has 99 bytes since {CHANGED}; at the checkpoint it had 100 (fd ")
    assert f"{CREATED.astimezone():%Y-%m-%d %H:%M:%S}" in blocker


@pytest.mark.parametrize(
    ("path", "grown", "blockers", "warnings", "rewinds"),
    [
        (LOG, "refuse", ["log-grown"], [], ()),
        (LOG, "keep", [], ["log-kept"], ()),
        (LOG, "rewind", [], ["file-rewound"], ((LOG, 11),)),
        (PLAIN, "refuse", ["file-grown"], [], ()),
        (PLAIN, "keep", ["file-grown"], [], ()),
        (PLAIN, "rewind", [], ["file-rewound"], ((PLAIN, 100),)),
    ],
)
def test_grown_files_depend_on_the_option(
    planned_restore: PlannedRestore,
    host: HostState,
    path: str,
    grown: str,
    blockers: list[str],
    warnings: list[str],
    rewinds: tuple[tuple[str, int], ...],
) -> None:
    verdict = judge_restore(replace(planned_restore, grown=grown), with_changed(host, path, size=500))
    assert [finding.key for finding in verdict.blockers] == blockers
    assert [finding.key for finding in verdict.warnings] == warnings
    assert verdict.rewinds == rewinds
    (finding,) = (*verdict.blockers, *verdict.warnings)
    assert "to 500 bytes" in finding.what
    assert (f"last at {CHANGED}" in finding.what) == bool(verdict.blockers)
    assert "?" not in str(finding)


def test_recreatable_files_are_not_blockers(planned_restore: PlannedRestore, host: HostState) -> None:
    """An empty log and a directory can be created again, with their owner and mode."""
    planned_restore = replace(planned_restore, owners={LOG: (33,), RUN: (0,)})
    for path, key, mode, command in (
        (LOG, "log-missing", stat.S_IFREG | 0o600, f"install --mode=0600 --owner=33 /dev/null {LOG}"),
        (RUN, "directory-missing", stat.S_IFDIR | 0o755, f"install --directory --mode=0755 --owner=0 {RUN}"),
    ):
        tree = with_file(planned_restore.tree, path, partial(replace, mode=mode))
        blocker = only_blocker(
            judge_restore(replace(planned_restore, tree=tree), replace(host, files=host.files | {path: None}))
        )
        assert blocker.startswith(f"{key}: {path} is missing (")
        assert command in blocker


ROTATED = (
    {"size": 5},  # truncated
    {"size": 500, "inode": 8},
    {"size": 500, "head": b"another"},
)


@pytest.mark.parametrize("change", ROTATED)
def test_rotated_log_is_accepted(planned_restore: PlannedRestore, host: HostState, change: dict[str, object]) -> None:
    """The program appends to the new log, which must not be cut."""
    planned_restore = replace(planned_restore, inodes={LOG: frozenset({7})}, heads={LOG: digest_head(b"a line")})
    host = with_changed(host, LOG, inode=7, head=b"a line of the log")
    assert judge_restore(planned_restore, host).blockers == ()
    rotated = with_changed(host, LOG, **change)
    for grown in ("refuse", "rewind"):
        blocker = only_blocker(judge_restore(replace(planned_restore, grown=grown), rotated))
        assert blocker.startswith(f"log-rotated: {LOG} is no longer the log of the checkpoint: that had 11 bytes, ")
        assert "--grown keep" in blocker
    verdict = judge_restore(replace(planned_restore, grown="keep"), rotated)
    assert (verdict.blockers, [finding.key for finding in verdict.warnings]) == ((), ["log-appended"])
    rehearsed = judge_restore(replace(planned_restore, grown="rewind", is_rehearsal=True), rotated)
    assert (rehearsed.blockers, [finding.key for finding in rehearsed.warnings]) == ((), ["log-appended"])
    assert judge_restore(replace(planned_restore, grown="rewind"), with_changed(host, LOG, size=500)).rewinds != ()


def test_file_that_replaced_a_log_is_not_cut_back(planned_restore: PlannedRestore, host: HostState) -> None:
    planned_restore = replace(
        planned_restore, inodes={PLAIN: frozenset({7})}, heads={PLAIN: digest_head(b"begin")}, grown="rewind"
    )
    host = with_changed(host, PLAIN, size=500, inode=7, head=b"begins so")
    assert [path for path, _ in judge_restore(planned_restore, host).rewinds] == [PLAIN]
    for change in ({"inode": 8}, {"head": b"other"}):
        assert only_blocker(judge_restore(planned_restore, with_changed(host, PLAIN, **change))).startswith(
            "file-other"
        )


def test_write_only_file_may_be_cut_back(planned_restore: PlannedRestore, host: HostState) -> None:
    """With `program >log`, the program writes after the end."""
    written = with_file(planned_restore.tree, PLAIN, lambda file: replace(file, flags=os.O_WRONLY))
    blocker = only_blocker(judge_restore(replace(planned_restore, tree=written), with_changed(host, PLAIN, size=0)))
    assert blocker.startswith("output-shrunk")
    assert f"truncate --size 100 {PLAIN}" in blocker


@pytest.mark.parametrize(
    ("flags", "blockers"),
    [
        (os.O_RDONLY, []),
        (os.O_RDWR, ["data-written"]),
        (os.O_WRONLY, ["data-written"]),
        (os.O_RDWR | os.O_APPEND, []),
    ],
)
def test_file_written_in_place_counts_as_changed(
    planned_restore: PlannedRestore, host: HostState, flags: int, blockers: list[str]
) -> None:
    """The program's memory does not match the content of the file."""
    tree = with_file(planned_restore.tree, PLAIN, lambda file: replace(file, flags=flags))
    planned_restore, host = (
        replace(planned_restore, tree=tree),
        with_changed(host, PLAIN, written=CREATED + timedelta(seconds=1)),
    )
    assert [finding.key for finding in judge_restore(planned_restore, host).blockers] == blockers
    for chosen in (
        replace(planned_restore, written="keep"),
        replace(planned_restore, still_runs=True),
        replace(planned_restore, is_rehearsal=True),
    ):
        verdict = judge_restore(chosen, host)
        assert (verdict.blockers, [finding.key for finding in verdict.warnings]) == ((), ["file-written"])


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(hours=1)])
def test_file_time_is_compared_with_the_recorded_file_time_and_not_with_the_clock(
    planned_restore: PlannedRestore, host: HostState, ahead: timedelta
) -> None:
    tree = with_file(planned_restore.tree, PLAIN, lambda file: replace(file, flags=os.O_RDWR))
    last = CREATED + ahead
    planned_restore = replace(planned_restore, tree=tree, times={PLAIN: last.timestamp()})
    assert judge_restore(planned_restore, with_changed(host, PLAIN, written=last)).blockers == ()
    since = with_changed(host, PLAIN, written=last + timedelta(seconds=1))
    assert [finding.key for finding in judge_restore(planned_restore, since).blockers] == ["data-written"]


def test_writes_of_the_running_original_are_ignored(planned_restore: PlannedRestore, host: HostState) -> None:
    """A move is rehearsed while the original writes to shared storage. A file that is too short is still reported."""
    planned_restore = replace(planned_restore, still_runs=True)
    assert judge_restore(planned_restore, with_changed(host, LOG, size=500)).blockers == ()
    assert only_blocker(judge_restore(planned_restore, with_changed(host, LOG, size=10))).startswith("log-rotated")
    for flags, keys in ((os.O_RDWR, []), (os.O_RDONLY, ["file-grown"])):
        files = tuple(
            replace(file, flags=flags) if isinstance(file, RegularFile) and file.path == PLAIN else file
            for file in planned_restore.tree.files
        )
        wanted = replace(planned_restore, tree=replace(planned_restore.tree, files=files))
        verdict = judge_restore(wanted, with_changed(host, PLAIN, size=500))
        assert [finding.key for finding in verdict.blockers] == keys


def test_grown_file_that_a_process_has_open_for_writing_is_not_cut_back(
    planned_restore: PlannedRestore, host: HostState
) -> None:
    """The writer may be the program itself, whose PID is no blocker in a new PID namespace."""
    chosen = replace(planned_restore, grown="rewind", new_pid_namespace=True)
    verdict = judge_restore(
        chosen, replace(with_changed(host, PLAIN, size=500), writers={PLAIN: FileWriter(41, "nginx")})
    )
    assert (verdict.rewinds, verdict.is_in_use) == ((), True)
    (finding,) = verdict.blockers
    assert "nginx (PID 41) has it open for writing" in finding.what


def test_grown_file_behind_a_link_is_not_cut_back(planned_restore: PlannedRestore, host: HostState) -> None:
    """The link may lead to another file."""
    verdict = judge_restore(
        replace(planned_restore, grown="rewind"), with_changed(host, PLAIN, size=500, is_linked=True)
    )
    assert ([finding.key for finding in verdict.blockers], verdict.rewinds) == (["file-linked"], ())


@pytest.mark.parametrize("grown", ["refuse", "rewind"])
def test_executable_that_became_longer_is_not_cut_back(
    planned_restore: PlannedRestore, host: HostState, grown: str
) -> None:
    """A longer program is another build, also without a build-id."""
    assert grown in ("refuse", "rewind")
    programs = {file.path for file in find_needed_files(planned_restore.tree) if file.build_id}
    assert len(programs) > 1
    for path in programs:
        file = host.files[path]
        assert file is not None
        verdict = judge_restore(replace(planned_restore, grown=grown), with_changed(host, path, size=file.size + 1))
        assert verdict.rewinds == ()
        (finding,) = verdict.blockers
        assert (finding.key, verdict.is_in_use) == ("program-grown", False)


def test_log_position_may_exceed_the_recorded_size(planned_restore: PlannedRestore, host: HostState) -> None:
    """The size is read before the freeze; later appends move the position."""
    with_early_size = replace(planned_restore, append_sizes={LOG: 4})
    assert judge_restore(with_early_size, host).blockers == ()
    (grown,) = judge_restore(with_early_size, with_changed(host, LOG, size=12)).blockers
    assert "from 11 to 12 bytes" in grown.what


def test_log_without_a_recorded_size_is_not_compared(planned_restore: PlannedRestore, host: HostState) -> None:
    assert judge_restore(replace(planned_restore, append_sizes={}), with_changed(host, LOG, size=5000)).blockers == ()


def test_other_build_of_a_library_is_a_blocker(planned_restore: PlannedRestore, host: HostState) -> None:
    libc = next(path for path in host.files if path.endswith("/libc.so.6"))
    blocker = only_blocker(judge_restore(planned_restore, with_changed(host, libc, build_id="00ff")))
    assert blocker.startswith(
        f"file-replaced: {libc} is a different build than at the checkpoint, since {CHANGED} (mapped by"
    )
    assert file_of(planned_restore.tree, libc).build_id in blocker
    assert judge_restore(planned_restore, with_changed(host, libc, build_id="")).blockers == (), (
        "CRIU compares only where there are two"
    )


def test_other_file_mode_is_a_blocker(planned_restore: PlannedRestore, host: HostState) -> None:
    blocker = only_blocker(judge_restore(planned_restore, with_changed(host, PLAIN, mode=stat.S_IFREG | 0o4600)))
    assert blocker.startswith(f"file-mode: {PLAIN} has mode 4600 since {CHANGED}; at the checkpoint it had 06")
    assert blocker.endswith(PLAIN)
    blocker = only_blocker(judge_restore(planned_restore, with_changed(host, RUN, mode=stat.S_IFDIR | 0o123)))
    assert "has mode 0123" in blocker


def test_other_file_kind_is_a_blocker(planned_restore: PlannedRestore, host: HostState) -> None:
    blocker = only_blocker(
        judge_restore(planned_restore, with_changed(host, PLAIN, mode=stat.S_IFDIR | 0o644, size=4096))
    )
    assert blocker.startswith(
        f"file-kind: {PLAIN} is a directory since {CHANGED}; at the checkpoint it was a regular file (fd "
    )
    assert "file of another kind" in only_blocker(judge_restore(planned_restore, with_changed(host, PLAIN, mode=0)))


def test_file_written_after_the_checkpoint_is_a_warning(planned_restore: PlannedRestore, host: HostState) -> None:
    verdict = judge_restore(planned_restore, with_changed(host, PLAIN, written=CREATED + timedelta(seconds=1)))
    assert (verdict.blockers, verdict.rewinds) == ((), ())
    (warning,) = verdict.warnings
    assert warning.key == "file-written"
    assert f"at {(CREATED + timedelta(seconds=1)).astimezone():%Y-%m-%d %H:%M:%S}" in warning.what
    assert judge_restore(planned_restore, with_changed(host, PLAIN, written=CREATED)).warnings == ()
    assert (
        judge_restore(planned_restore, with_changed(host, RUN, written=CREATED + timedelta(days=1))).warnings == ()
    ), "directories change"


def test_remap_link_is_compared_like_the_file(planned_restore: PlannedRestore, host: HostState) -> None:
    def link(file: RegularFile) -> RegularFile:
        return replace(file, remap=Remap(LINKED, 5, "/srv/link_remap.5"))

    linked = replace(planned_restore, tree=with_file(planned_restore.tree, PLAIN, link))
    files = host.files | {"/srv/link_remap.5": host.files[PLAIN]}
    assert judge_restore(linked, replace(host, files=files)).blockers == ()
    assert only_blocker(judge_restore(linked, host)).startswith("link-missing: /srv/link_remap.5 is missing")


UPGRADED = Package("libc6", "2.42-1", CREATED + timedelta(days=1), before="2.41-4")


@pytest.mark.parametrize("grown", ["refuse", "rewind"])
@pytest.mark.parametrize("change", [{"build_id": "00ff"}, {"size": 10**9}, {"size": 5}])
def test_upgraded_package_is_named(
    planned_restore: PlannedRestore, host: HostState, grown: str, change: dict[str, object]
) -> None:
    """The file is never cut back, and the message has the old version."""
    assert grown in ("refuse", "rewind")
    chosen = replace(planned_restore, grown=grown)
    libc = next(path for path in host.files if path.endswith("/libc.so.6"))
    host = with_changed(host, libc, **change)
    assert find_changed_paths(chosen, host) == (libc,)
    blocker = only_blocker(judge_restore(chosen, replace(host, packages={libc: UPGRADED})))
    when = f"{UPGRADED.since.astimezone():%Y-%m-%d %H:%M:%S}"
    assert blocker.startswith(f"file-upgraded: {libc} changed since the checkpoint: package libc6 became 2.42-1 at ")
    assert f" at {when} (mapped by " in blocker
    assert blocker.endswith("install libc6 2.41-4 again")
    nameless = replace(UPGRADED, before="")
    assert only_blocker(judge_restore(chosen, replace(host, packages={libc: nameless}))).endswith(
        "install libc6 as it was at the checkpoint again"
    )


def test_change_after_a_package_upgrade_is_not_attributed_to_it(
    planned_restore: PlannedRestore, host: HostState
) -> None:
    libc = next(path for path in host.files if path.endswith("/libc.so.6"))
    older = replace(UPGRADED, since=CREATED - timedelta(days=1))
    blocker = only_blocker(
        judge_restore(planned_restore, replace(with_changed(host, libc, build_id="00ff"), packages={libc: older}))
    )
    assert blocker.startswith("file-replaced: ")


def test_packages_are_needed_only_for_changed_files(planned_restore: PlannedRestore, host: HostState) -> None:
    assert find_changed_paths(planned_restore, host) == ()
    assert find_changed_paths(planned_restore, with_changed(host, PLAIN, written=CREATED + timedelta(days=1))) == ()
    assert find_changed_paths(planned_restore, replace(host, files=host.files | {PLAIN: None})) == (PLAIN,)


def test_time_is_linear_in_the_number_of_grown_files(planned_restore: PlannedRestore, host: HostState) -> None:
    """The open files of the tree are searched once, not once for each file."""
    first = next(file for file in find_needed_files(planned_restore.tree) if file.size and not file.build_id)
    as_it_was = host.files[find_needed_path(first)]
    assert as_it_was is not None
    grown = replace(as_it_was, size=5)

    def prepare(count: int) -> Callable[[], RestoreVerdict]:
        many = [replace(first, id=1_000_000 + number, path=f"/many/{number}", size=0) for number in range(count)]
        logs = [
            replace(file, id=file.id + count, path=f"{file.path}.log", size=None, flags=os.O_WRONLY | os.O_APPEND)
            for file in many
        ]
        tree = replace(planned_restore.tree, files=(*planned_restore.tree.files, *many, *logs))
        files = {**host.files, **{file.path: grown for file in (*many, *logs)}}
        asked = replace(
            planned_restore, tree=tree, append_sizes={**planned_restore.append_sizes, **{file.path: 1 for file in logs}}
        )
        return partial(judge_restore, asked, replace(host, files=files))

    assert len(prepare(1000)().blockers) == 2000
    assert grows_linearly(prepare, 1600)
