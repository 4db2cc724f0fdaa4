"""Judge whether a host can take a live tree, from the questions about the tree and what the host has. Pure.

From the questions it makes the tree of a set of images. The destination judges that by the checks of its own restores
(`judge_restore`, `judge_attributes`). Here is only what a move has to compare and a restore has not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause
from crckpt.causes.catalogue import OF_FILES
from crckpt.causes.finding import distinct
from crckpt.images.core import ZOMBIE, Core, Credentials
from crckpt.images.files import OpenFile
from crckpt.images.inventory import Inventory
from crckpt.images.mm import FILE_PRIVATE, PROT_EXEC, SHADOW_STACK, AddressSpace, Vma
from crckpt.images.other_files import Watch
from crckpt.images.processes import KernelIds, Namespaces
from crckpt.images.regfile import GHOST, RegularFile, Remap, ghost_image
from crckpt.images.tree import ImageProcess, ImageTree, OpenDescriptor, Thread
from crckpt.images.tty import Terminal, TerminalInfo
from crckpt.migrate.preflight.judge_files import LocalFile, is_completed, is_shared, judge_files
from crckpt.migrate.preflight.questions import AskedProcess, AskedTerminal, MoveQuestions
from crckpt.migrate.wire.messages import Findings
from crckpt.model import PAGE_SIZE, Count
from crckpt.preflight.restore.attributes import AttributeVerdict
from crckpt.preflight.restore.checks import judge_restore
from crckpt.preflight.restore.descriptors import needs_terminal
from crckpt.preflight.restore.host import HostState, PlannedRestore


class Judgement(Struct, frozen=True):
    """What prevents a move, what it loses, and the ids of files that are not there: `--send-files` may send them.

    `logs`: id and size here of each log that the source completes. `shared`: the ids of what is the same file here.
    """

    blockers: Findings = ()
    warnings: Findings = ()
    lacking: Annotated[tuple[Count, ...], Meta(max_length=1 << 20)] = ()
    logs: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=1 << 20)] = ()
    shared: Annotated[tuple[Count, ...], Meta(max_length=1 << 20)] = ()


def judge(
    questions: MoveQuestions,
    planned: PlannedRestore,
    host: HostState,
    attributes: AttributeVerdict,
    files: dict[int, LocalFile],
    names: Sequence[str],
) -> Judgement:
    """Compare what the tree needs with what the host has.

    `files` are by the id in the questions; `names` are of the asked users and groups, in their order.
    """
    verdict = judge_restore(planned, _without_arriving(questions, planned, host))
    judged = judge_files(questions, planned, host, files)
    compared = tuple(_compare_names(questions, names))
    weaker = (*attributes.weaker, *(found for found in compared if found.key == "rights-of-another"), *judged.weaker)
    blockers = (
        *(found for found in verdict.blockers if found.key not in OF_FILES),
        *judged.blockers,
        *_find_connections_that_stay(planned),
        *(() if questions.allows_weaker else weaker),
    )
    warnings = (
        *(found for found in verdict.warnings if found.key not in OF_FILES),
        *judged.warnings,
        *attributes.lost,
        *(weaker if questions.allows_weaker else ()),
        *(found for found in compared if found.key != "rights-of-another"),
    )
    lacking, logs, shared = [], [], []
    for file, here in ((file, files[file.id]) for file in questions.files if file.id in files):
        if here.is_missing and not file.removed:
            lacking.append(file.id)
        if here.is_same or is_shared(file, here):
            shared.append(file.id)
        if here.state is not None and not planned.tree.is_apart("mnt") and is_completed(questions, file, here):
            logs.append((file.id, here.state.size))
    return Judgement(distinct(blockers), distinct(warnings), tuple(lacking), tuple(logs), tuple(shared))


def _without_arriving(questions: MoveQuestions, planned: PlannedRestore, host: HostState) -> HostState:
    moved = {_address(each.partition("/")[0]) for each in questions.moved_addresses} - {None}
    arriving = {
        socket.id
        for socket in planned.tree.inet_sockets
        if host.refused.get(socket.id) == "missing" and socket.source.ip in moved
    }
    return replace(host, refused={number: why for number, why in host.refused.items() if number not in arriving})


def _find_connections_that_stay(planned: PlannedRestore) -> Iterator[Finding]:
    """Find connections with a program on the source's own host that is not in the tree."""
    if not planned.keeps_connections or planned.tree.is_apart("net"):
        return
    inner = {each.id for each in planned.tree.inner_connections}
    for each in planned.tree.established:
        own, other = each.source.ip, each.destination.ip
        is_local = own == other or (other is not None and other.is_loopback)
        if is_local and each.id not in inner:
            yield cause("connection-stays").finding(connection=each.title)


def _compare_names(questions: MoveQuestions, names: Sequence[str]) -> Iterator[Finding]:
    for asked, there in zip(questions.names, names, strict=True):
        values = {"kind": asked.kind, "number": asked.number}
        if asked.name and not there:
            yield cause("user-missing").finding(name=asked.name, **values)
        elif there not in ("", asked.name):
            key = "rights-of-another" if asked.gives_rights else "user-differs"
            yield cause(key).finding(here=asked.name or "no name", there=there, **values)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


CLOCKS_IMAGE: Final = "timens-0.img"
_KINDS: Final = ("pid", "net", "ipc", "uts", "mnt", "user", "cgroup", "time")
# No file and no package is newer: the tree runs, so there is no checkpoint after which something could have changed.
_NO_CHECKPOINT: Final = datetime(9000, 1, 1, tzinfo=UTC)
# Beyond the numbers of pseudoterminals.
_OF_NO_NUMBER: Final = 1 << 32


def plan_restore(questions: MoveQuestions, criu_version: str) -> PlannedRestore:
    """Plan the restore of the live tree by a CRIU of this version, detached."""
    tree = make_tree(questions)
    known = {file.id: file for file in tree.regular_files}
    return PlannedRestore(
        tree=tree,
        created=_NO_CHECKPOINT,
        cpu_features=questions.host.cpu_features,
        keeps_connections=questions.tcp == "keep",
        append_sizes={file.name: file.size for file in questions.files if known[file.id].is_append_only},
        grown="refuse",
        new_pid_namespace=False,
        has_terminal=questions.tty is not None,
        crius=(questions.host.criu_version, criu_version),
        closed_pipes=frozenset(questions.closed_pipes),
        # The holder of a new terminal is the parent of the root; else CRIU is, which ends.
        is_orphan=not (questions.tty == "new" and needs_terminal(tree)),
        may_have_consoles=questions.allows_weaker,
        tty=questions.tty or "ours",
        devices=(questions.attributes and questions.attributes.devices) or {},
    )


def make_tree(questions: MoveQuestions) -> ImageTree:
    """Make the tree that a dump would describe now, without memory."""
    terminals = {each.id: _terminal_info(each) for each in questions.terminals}
    files: dict[int, OpenFile] = {**dict(_regular_files(questions)), **{each.id: each for each in questions.sockets}}
    files |= {pipe.id: pipe for pipe in questions.pipes}
    if questions.watched:
        watched = tuple(os.fsdecode(path) for path in questions.watched)
        files[0] = Watch(0, "inotify", 0, len(watched), watched)
    for terminal in questions.terminals:
        path = os.fsdecode(terminal.path)
        files[terminal.id] = Terminal(terminal.id, terminals[terminal.id].id, terminal.flags, terminal.file, path)
    return ImageTree(
        inventory=Inventory(
            2, _kernel_ids(questions.namespaces), None, questions.tcp == "close", questions.security_module
        ),
        processes=tuple(_process(questions, process, files) for process in questions.processes),
        files=tuple(files.values()),
        terminals=tuple({info.id: info for info in terminals.values()}.values()),
        locks=questions.locks,
    )


def list_image_sizes(questions: MoveQuestions) -> dict[str, int]:
    """List the images that matter to the preflight, with their sizes in bytes: clocks, and files without a name."""
    sizes = {ghost_image(file.id): file.size for file in questions.files if file.removed == "gone"}
    return sizes | ({CLOCKS_IMAGE: 0} if questions.has_clocks else {})


def _regular_files(questions: MoveQuestions) -> Iterator[tuple[int, RegularFile]]:
    for asked in questions.files:
        file = RegularFile(
            id=asked.id,
            path=asked.name,
            flags=asked.flags,
            pos=asked.position,
            size=asked.size,
            mode=asked.mode,
            build_id=asked.build_id,
            external=False,
            # A file without a name travels in the images; one that has other names cannot move: see `judge`.
            remap=Remap(GHOST, asked.id, size=asked.size) if asked.removed else None,
        )
        # As CRIU does: the size of a log, or of what is no regular file, is not saved.
        is_sized = stat.S_ISREG(asked.mode) and not file.is_append_only
        yield asked.id, file if is_sized else replace(file, size=None)


def _terminal_info(asked: AskedTerminal) -> TerminalInfo:
    # Odd numbers are masters (criu/tty.c:387, tty_gen_id).
    number = asked.index if asked.index is not None else _OF_NO_NUMBER + asked.id
    return TerminalInfo(
        id=number << 1 | asked.is_master,
        kind=asked.kind,
        session=asked.session,
        index=asked.index,
        is_hung_up=asked.is_hung_up,
    )


def _process(questions: MoveQuestions, asked: AskedProcess, files: Mapping[int, OpenFile]) -> ImageProcess:
    core = Core(
        arch=questions.host.arch,
        comm=asked.comm,
        state=asked.state,
        exit_code=0,
        blocked=(),
        pending=(),
        credentials=Credentials(asked.uid, asked.gid, asked.euid, asked.egid, asked.groups),
        has_seccomp_filter=asked.has_seccomp_filter,
        security_profile=asked.profile,
        no_new_privs=asked.no_new_privs,
    )
    if asked.state == ZOMBIE:
        return ImageProcess(asked.pid, asked.ppid, asked.pgid, asked.sid, (Thread(asked.pid, core),))
    # A map for each program and library, and for a shadow stack: no more is checked.
    programs = {file.id for file in questions.files if file.is_executed}
    maps = [Vma(0, PAGE_SIZE, 0, number, PROT_EXEC, 0, FILE_PRIVATE) for number in asked.mapped if number in programs]
    if asked.has_shadow_stack:
        maps.append(Vma(0, PAGE_SIZE, 0, 0, 0, 0, SHADOW_STACK))
    return ImageProcess(
        pid=asked.pid,
        ppid=asked.ppid,
        pgid=asked.pgid,
        sid=asked.sid,
        threads=tuple(Thread(tid, core) for tid in asked.threads),
        descriptors=tuple(OpenDescriptor(fd, files[number], close_on_exec=False) for fd, number in asked.descriptors),
        memory=AddressSpace(tuple(maps), (), asked.exe or 0, 0, 0, 0, 0, 0, 0, 0, 0),
        mapped=tuple(files[number] for number in asked.mapped),
        exe=files[asked.exe] if asked.exe is not None else None,
        cwd=files[asked.cwd] if asked.cwd is not None else None,
        root=files[asked.root] if asked.root is not None else None,
        ids=_kernel_ids(asked.namespaces),
    )


def _kernel_ids(namespaces: tuple[tuple[str, int], ...]) -> KernelIds:
    found = dict(namespaces)
    return KernelIds(0, Namespaces(*(found.get(kind, 0) for kind in _KINDS)))
