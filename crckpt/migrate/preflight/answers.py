"""The answers of a move's destination: survey this host for another host's live tree, and judge.

Nothing is made or changed here, except that the trial of a CRIU that crckpt does not know yet dumps and restores a
process of its own, as `crckpt doctor` does.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from crckpt.causes import cause
from crckpt.errors import HostCannot
from crckpt.host import machine
from crckpt.host.disk import space
from crckpt.host.disk.users import find_group_name, find_user_name
from crckpt.host.proc.file_users import read_held_locks
from crckpt.host.proc.status import namespace
from crckpt.host.process.terminals import read_used_numbers
from crckpt.host.program.program import Program, is_same_program
from crckpt.migrate.preflight.judge import Judgement, Survey, judge, list_image_sizes, plan_restore
from crckpt.migrate.preflight.judge_files import LocalFile
from crckpt.migrate.preflight.look import look_for_files
from crckpt.migrate.preflight.questions import AskedFile, MoveQuestions, Text
from crckpt.migrate.wire.messages import decode_content
from crckpt.model import MEBIBYTE, Count, Host
from crckpt.ops.context import Context
from crckpt.ops.dump.check_job import read_program
from crckpt.ops.last_checkpoint import read_last_checkpoint
from crckpt.ops.restore.attributes import plan_attributes
from crckpt.ops.restore.survey import MemoryNeed, find_bind_refusals, find_id_users, find_releases, read_resources
from crckpt.preflight.restore.host import HostState
from crckpt.preflight.restore.locks import find_needed_locks
from crckpt.preflight.restore.plan import PlannedRestore
from crckpt.store import is_blank
from crckpt.store.layout import SCRATCH

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
        survey = _survey(questions, planned, context, failure, move, shares_kernel=shares_kernel)
        found, store_free = judge(questions, planned, survey), survey.store_free
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
    here = look_for_files(files)
    return tuple(file.id for file in files if file.id in here and here[file.id].is_copy_of(file))


def decode_answers(content: bytes) -> MoveAnswers:
    """Decode the answers of another host. Raises IntegrityError."""
    return decode_content(content, _DECODER, "the answers", _MOST_BYTES)


def _survey(
    questions: MoveQuestions,
    planned: PlannedRestore,
    context: Context,
    failure: str,
    move: tuple[str, str] | None,
    *,
    shares_kernel: bool,
) -> Survey:
    # Of what is watched only the path must be there.
    watched = [AskedFile(-number, path, mode=0) for number, path in enumerate(questions.watched, 1)]
    asked = [*(file for file in questions.files if not file.removed), *watched]
    files = look_for_files(asked, shares_kernel=shares_kernel)
    unwatched = frozenset(file.name for file in watched if files[file.id].is_missing)
    place = space.nearest_existing(context.store)
    return Survey(
        host=_host_state(questions, planned, files, place, unwatched),
        attributes=plan_attributes(questions.attributes, planned.tree, allow_weaker=questions.allows_weaker).verdict,
        files=files,
        names=tuple(
            find_user_name(asked.number) if asked.kind == "user" else find_group_name(asked.number)
            for asked in questions.names
        ),
        store=str(context.store),
        store_free=space.free_disk(place),
        criu_failure=failure,
        job_program=_find_other_program(questions, context),
        move=move,
    )


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
    refused = find_bind_refusals(planned)
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
    program = read_program(newest.repository, newest.checkpoint, newest.details)
    asked = Program(**asdict(questions.program))
    return "" if is_same_program(program, asked) else program.title
