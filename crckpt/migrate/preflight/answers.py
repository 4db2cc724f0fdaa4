"""The answers of a move's destination: survey this host for another host's live tree, and judge.

Nothing is made or changed here, except that the trial of a CRIU that crckpt does not know yet dumps and restores a
process of its own, as `crckpt doctor` does. The paths of files come from the other host: see
`crckpt.host.disk.checked_files`. A file system that does not answer cannot be made to: a thread waits for it, and this
module only for the thread. No file system is disconnected for a question.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from crckpt.causes import cause, mebibytes
from crckpt.errors import HostCannot, error_text
from crckpt.host import machine
from crckpt.host.disk import space
from crckpt.host.disk.checked_files import HeldFile, find_automounts, held, read_build_id, read_digest, regular_opened
from crckpt.host.disk.path_trust import find_group_name, find_user_name
from crckpt.host.proc.file_users import read_held_locks
from crckpt.host.proc.status import namespace
from crckpt.host.process.signals import start_thread
from crckpt.host.process.terminals import read_used_numbers
from crckpt.host.program import Program, is_same_program
from crckpt.host.steps import limit
from crckpt.migrate.preflight.asked_files import (
    LARGEST_READ,
    MOST_READ,
    find_local_locks,
    find_shared_file_systems,
    limit_time,
)
from crckpt.migrate.preflight.judge import Judgement, judge, list_image_sizes, plan_restore
from crckpt.migrate.preflight.judge_files import LocalFile
from crckpt.migrate.preflight.questions import AskedFile, MoveQuestions, Text
from crckpt.migrate.wire.messages import decode_content
from crckpt.model import MEBIBYTE, Count, Host, utc_datetime
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import read_recorded_program
from crckpt.ops.last_checkpoint import read_last_checkpoint
from crckpt.ops.restore.attributes import plan_attributes
from crckpt.ops.restore.survey import MemoryNeed, find_bind_refusals, find_id_users, find_releases, read_resources
from crckpt.preflight.restore.descriptors import find_needed_locks
from crckpt.preflight.restore.host import FileState, HostState, PlannedRestore
from crckpt.store import is_blank
from crckpt.store.layout import SCRATCH

ANSWERS_WITHIN_S: Final = limit("CRCKPT_FILES_ANSWER_S", 10)
"""A file system that does not answer for this many seconds counts as silent."""

_LOOK_S: Final = 0.1


def look_for_files(
    asked: Sequence[AskedFile], within_s: float = ANSWERS_WITHIN_S, *, shares_kernel: bool = False
) -> dict[int, LocalFile]:
    """Look for files, waiting for silent file systems; `shares_kernel` with the host that asks. Ids are the keys."""
    look = _Look(asked, shares_kernel=shares_kernel)
    start_thread(look.run)
    waited, before = 0.0, -1
    while not look.is_done.wait(_LOOK_S):
        # Counts looks, not time: we may have been stopped.
        now = look.progress
        waited, before = (0.0, now) if now != before else (waited + _LOOK_S, now)
        if waited > within_s:
            return look.give_up()
    return look.results


class _Look:
    def __init__(self, asked: Sequence[AskedFile], *, shares_kernel: bool) -> None:
        self._asked = asked
        self._shares_kernel = shares_kernel
        self._shared = find_shared_file_systems()
        self._local_locks = find_local_locks()
        self._automounts = find_automounts()
        self._left = MOST_READ
        self._current: AskedFile | None = None
        self.results: dict[int, LocalFile] = {}
        self.progress = 0
        self.is_done = threading.Event()

    def run(self) -> None:
        try:
            for file in self._asked:
                self._current = file
                self.results[file.id] = self._look_at(file)
                self._count(1)
        finally:
            self.is_done.set()

    def give_up(self) -> dict[int, LocalFile]:
        """Return what is known, without the file that the thread still waits for, and those after it."""
        known, current = dict(self.results), self._current
        for file in self._asked:
            if file.id not in known:
                known[file.id] = LocalFile(problem="silent" if file is current else "unasked")
        return known

    def _count(self, more: int) -> None:
        self.progress += more

    def _look_at(self, file: AskedFile) -> LocalFile:
        try:
            # CRIU opens a symbolic link that the tree has open itself (O_PATH | O_NOFOLLOW) with these flags.
            with held(file.name, self._automounts, follow=not file.flags & os.O_NOFOLLOW) as here:
                if here.is_unmounted:
                    return LocalFile(problem="unmounted")
                return self._describe(file, here)
        except (FileNotFoundError, NotADirectoryError):
            return LocalFile()
        except (OSError, ValueError) as error:
            return LocalFile(problem="refused", why=error_text(error))

    def _describe(self, file: AskedFile, here: HeldFile) -> LocalFile:
        status = here.status
        is_regular = stat.S_ISREG(status.st_mode)
        build_id = b""
        with suppress(OSError):
            build_id = (read_build_id(here.link) if file.build_id and is_regular else None) or b""
        state = FileState(
            size=status.st_size,
            mode=status.st_mode,
            written=utc_datetime(status.st_mtime),
            changed=utc_datetime(status.st_ctime),
            build_id=build_id.hex(),
            owner=status.st_uid,
            is_redirected=here.is_redirected,
        )
        return LocalFile(
            state=state,
            digest=self._digest(file, here) if is_regular else "",
            modified=limit_time(status.st_mtime_ns),
            gid=status.st_gid,
            inode=status.st_ino,
            is_same=self._shares_kernel and (status.st_dev, status.st_ino) == (file.device, file.inode),
            shared_by=self._shared.get(status.st_dev, ""),
            owners={uid: find_user_name(uid) for uid in here.owners},
            local_locks=self._local_locks.get(status.st_dev, frozenset()),
        )

    def _digest(self, file: AskedFile, here: HeldFile) -> str:
        """Read the content only where it decides: the other host has read it, and the size is the same."""
        if not file.digest or here.status.st_size != file.size or file.size > min(LARGEST_READ, self._left):
            return ""
        self._left -= file.size
        with suppress(OSError), regular_opened(here.link) as descriptor:
            return read_digest(descriptor, file.size, self._count) if descriptor is not None else ""
        return ""


_MOST_BYTES: Final = 32 * MEBIBYTE
_MOST_FINDINGS: Final = 10_000


class MoveAnswers(Judgement, frozen=True, kw_only=True):
    """The destination's answers.

    - `received`, `sent`: when the questions came and the answers went, in seconds since 1970 by this host's clock
    - `store`, `store_free`: the directory of the store there, and its free bytes; None if that is not known
    """

    host: Host
    received: float
    sent: float
    store: Text = ""
    store_free: Count | None = None


_DECODER: Final = msgspec.msgpack.Decoder(MoveAnswers)


def answer(
    questions: MoveQuestions, context: Context, move: tuple[str, str] | None = None, *, shares_kernel: bool = False
) -> MoveAnswers:
    """Judge whether this host can take the tree. `move`: id and state of another one. Raises StoreUnusable."""
    received = time.time()
    version = digest = failure = ""
    try:
        criu = context.criu()
        version, digest = criu.version, criu.digest
    except HostCannot as error:
        failure = error.message
    planned = replace(plan_restore(questions, version), shares_kernel=shares_kernel)
    if shares_kernel and namespace("self", "pid") == dict(questions.namespaces).get("pid"):
        # All that the tree has is in use: by the tree.
        found, store_free = Judgement((cause("same-host").finding(),), ()), None
    elif questions.transaction and (context.store / SCRATCH / questions.transaction).exists():
        # Each side would take the other's records for its own.
        found, store_free = Judgement((cause("same-store").finding(directory=context.store),), ()), None
    else:
        found, store_free = _judge_here(questions, planned, context, failure, move)
    return MoveAnswers(
        found.blockers[:_MOST_FINDINGS],
        found.warnings[:_MOST_FINDINGS],
        *(found.lacking, found.logs, found.shared),
        host=machine.describe_host(version, digest),
        received=received,
        sent=time.time(),
        store=str(context.store).encode(errors="replace").decode(),
        store_free=store_free,
    )


def compare(files: tuple[AskedFile, ...]) -> tuple[int, ...]:
    """Find which files of the source, as they are there now, are the same here; return their ids."""
    known = look_for_files(files)
    found = ((file, here, here.state) for file in files if (here := known.get(file.id)) is not None)
    return tuple(
        file.id
        for file, here, state in found
        # The digest is empty if the content was not read.
        if state is not None and (state.size, here.modified, here.digest) == (file.size, file.modified, file.digest)
    )


def decode_answers(content: bytes) -> MoveAnswers:
    """Decode the answers of another host. Raises IntegrityError."""
    return decode_content(content, _DECODER, "the answers", _MOST_BYTES)


def _judge_here(
    questions: MoveQuestions, planned: PlannedRestore, context: Context, failure: str, move: tuple[str, str] | None
) -> tuple[Judgement, int]:
    """Survey this host and judge it. Return the free bytes of the store, too."""
    # Of what is watched only the path must be there.
    watched = [AskedFile(-number, path, mode=0) for number, path in enumerate(questions.watched, 1)]
    asked = [*(file for file in questions.files if not file.removed), *watched]
    files = look_for_files(asked, shares_kernel=planned.shares_kernel)
    unwatched = frozenset(file.name for file in watched if files[file.id].is_missing)
    place = space.nearest_existing(context.store)
    host = _host_state(questions, planned, files, place, unwatched)
    attributes = plan_attributes(questions.attributes, planned.tree, allow_weaker=questions.allows_weaker).verdict
    names = [
        find_user_name(each.number) if each.kind == "user" else find_group_name(each.number) for each in questions.names
    ]
    found = judge(questions, planned, host, attributes, files, names)
    blockers, warnings = [], list(found.warnings)
    if move is not None:
        blockers.append(cause("move-in-progress").finding(job=questions.job, move=move[0], state=move[1]))
    if program := _find_other_program(questions, context):
        blockers.append(cause("job-there").finding(job=questions.job, program=program))
    if failure:
        blockers.append(cause("no-criu").finding(why=failure))
    free = space.free_disk(place)
    if free < questions.memory:
        values = {"needed": mebibytes(questions.memory), "free": mebibytes(free), "directory": str(context.store)}
        warnings.append(cause("move-space").finding(**values))
    return replace(found, blockers=(*blockers, *found.blockers), warnings=tuple(warnings)), free


def _host_state(
    questions: MoveQuestions,
    planned: PlannedRestore,
    files: dict[int, LocalFile],
    store: Path,
    unwatched: frozenset[str],
) -> HostState:
    states = {file.name: files[file.id].state for file in questions.files if file.id in files}
    locked = {path for _, path, _ in find_needed_locks(planned.tree) if states.get(path) is not None}
    # Where deleted files are made again: these paths were not looked at.
    deleted = {file.id for file in planned.tree.regular_files if file.is_deleted}
    tree = replace(planned.tree, files=tuple(file for file in planned.tree.files if file.id not in deleted))
    needed = MemoryNeed(questions.memory, lambda: questions.memory)
    # On another host than its own, an address would never come.
    refused = find_bind_refusals(planned, may_come_later=False)
    return HostState(
        owners=find_id_users(planned.tree),
        files=states,
        refused=refused,
        interfaces=tuple(socket.if_nameindex()),
        released=find_releases(planned, refused),
        resources=read_resources(replace(planned, tree=tree), list_image_sizes(questions), needed, store),
        us=os.getpid(),
        terminals=read_used_numbers(),
        locks=read_held_locks(locked),
        unwatched=unwatched,
    )


def _find_other_program(questions: MoveQuestions, context: Context) -> str:
    """The program of which the store has checkpoints under the name of the job, if it is another one."""
    if is_blank(context.store):
        return ""
    newest = read_last_checkpoint(context.repository(), questions.job)
    if newest is None or newest.details is None:
        return ""
    program = read_recorded_program(newest.repository, newest.checkpoint, newest.details)
    asked = Program(**asdict(questions.program))
    return "" if is_same_program(program, asked) else program.title
