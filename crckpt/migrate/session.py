"""Connect the two sides of a migration: ssh, a Hello of each, then what each has to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec.structs import replace

from crckpt import __version__
from crckpt.causes import cause, preflight_refusal
from crckpt.criu.hold import PATIENCE_S
from crckpt.errors import CrckptError, HostCannot, Interrupted, MoveInDoubt
from crckpt.host.disk import space
from crckpt.host.network.closing import report_closing
from crckpt.host.network.newcomers import wait_until_accepted
from crckpt.host.network.other_users import find_other_users
from crckpt.host.steps import limit
from crckpt.migrate.addresses import check_source, list_source_addresses
from crckpt.migrate.destination.receive import Destination
from crckpt.migrate.preflight.answers import decode_answers
from crckpt.migrate.preflight.ask import ask
from crckpt.migrate.preflight.questions import MoveQuestions, encode_questions
from crckpt.migrate.preflight.report import GateReport, judge_store_space, make_report, plan_sending
from crckpt.migrate.request import FileToSend, MigrateRequest, MigrateResult, MoveReport
from crckpt.migrate.resume import ResumeResult, resume, settle_moves
from crckpt.migrate.source.move import move_tree
from crckpt.migrate.transfer.send_files import send_files
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.ssh import Peer, connected, make_hello
from crckpt.migrate.wire.writer import Bandwidth
from crckpt.model import JobName, MoveId
from crckpt.ops.context import Context
from crckpt.ops.dump.dump import examined
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.failures import to_crckpt_error
from crckpt.store import Repository, is_blank
from crckpt.store.moves import read_move

# Seconds. A crckpt on the other host notices a lost connection only after its patience.
_FINISH_WITHIN_S: Final = limit("CRCKPT_FINISH_S", 4 * PATIENCE_S)
_BETWEEN_TRIES_S: Final = PATIENCE_S / 2


def migrate(request: MigrateRequest, context: Context, report: MoveReport) -> MigrateResult:
    """Move a tree; with `check`, only check whether it would work. Raises what a dump raises, and MoveInDoubt."""
    with ExitStack() as stack:
        asked = DumpRequest(
            request.target,
            job=request.job,
            stop=True,
            tcp=request.options.tcp,
            preflight=request.options.preflight,
            # `_pass_gate` waits for them.
            skip_in_flight=True,
            other_program=request.other_program,
        )
        target = stack.enter_context(examined(asked, context))
        root = target.observed.tree.root
        repository = stack.enter_context(_opened_store(context, is_check=request.check))
        peer = stack.enter_context(_connected_for(request, context, repository))
        settle_moves(repository, peer, target.job)
        with repository.transaction() as transaction:
            found = _pass_gate(request, target, peer, transaction.name, report)
        is_late = request.options.lazy == "source"
        risk = (cause("lazy-risk").finding(job=target.job, host=request.host),) if is_late else ()
        if request.check:
            closing = report_closing("connections-closing", list_source_addresses(request.options.addresses))
            return MigrateResult(
                target.job,
                request.host,
                is_check=True,
                memory_bytes=target.observed.memory,
                to_send=tuple(FileToSend(file.name, file.size) for file in found.lacking if request.send_files),
                warnings=(*found.warnings, *closing, *risk),
            )
        for each in risk:
            report.say(f"note: {each.what}")
        named = replace(request, job=target.job)
        try:
            return move_tree(named, root, context, repository, peer, found, report)
        except MoveInDoubt as doubt:
            stack.close()
            return _finish(named, context, repository, doubt, report)


def find_free_bytes(request: MigrateRequest, context: Context) -> int:
    """Ask the other host once how many bytes trees may take there. Raises RemoteError if it cannot be reached."""
    with (
        _opened_store(context, is_check=request.check) as repository,
        _connected_for(request, context, repository) as peer,
    ):
        return peer.hello.free_bytes


def _finish(
    request: MigrateRequest, context: Context, repository: Repository, doubt: MoveInDoubt, report: MoveReport
) -> MigrateResult:
    """Finish the move over another connection. Raises MoveInDoubt if that fails, or is interrupted."""
    move = read_move(repository.backend, JobName(request.job or ""))
    assert move is not None
    report.say(f"{doubt.message}; connecting again ...")
    try:
        found = _resume_soon(move.id, context, doubt)
    except Interrupted:
        raise doubt from None
    return MigrateResult(
        found.move.job, request.host, move.id, found.pid, found.move.checkpoint, terminal_log=found.terminal_log
    )


def _resume_soon(move_id: MoveId, context: Context, doubt: MoveInDoubt) -> ResumeResult:
    """Try again and again to finish a move that this process began; raise the last MoveInDoubt if that fails."""
    until = time.monotonic() + _FINISH_WITHIN_S
    while True:
        left_s = round(until - time.monotonic())
        try:
            return resume(move_id, context, same_process=True, answer_within_s=left_s)
        except MoveInDoubt as error:
            doubt = error
        except (CrckptError, OSError):
            # `doubt` says what to type.
            pass
        if time.monotonic() + 2 * _BETWEEN_TRIES_S > until:
            raise doubt
        time.sleep(_BETWEEN_TRIES_S)


def _pass_gate(
    request: MigrateRequest, target: DumpTarget, peer: Peer, transaction: str, report: MoveReport
) -> GateReport:
    """Check on both hosts what prevents the move; nothing is touched. Raises PreflightRefused with all of it."""

    def ask_there() -> tuple[MoveQuestions, GateReport]:
        questions = ask(target, request.options, sends_files=request.send_files, transaction=transaction)
        sent = time.time()
        peer.connection.send(messages.Questions(encode_questions(questions)))
        answers = decode_answers(peer.connection.receive(messages.Answers).content)
        found = make_report(target, questions, answers, (sent, time.time()), request.host)
        if peer.hello.version != __version__:
            other = cause("other-version").finding(theirs=peer.hello.version, ours=__version__)
            found = replace(found, blockers=(other.word_for("there", peer=request.host), *found.blockers))
        return questions, judge_store_space(found, target, answers, request.host)

    if refused := check_source(list_source_addresses(request.options.addresses)):
        raise preflight_refusal(refused)
    if request.options.tcp != "close" and not wait_until_accepted(target.observed.tree.pids):
        raise preflight_refusal((cause("tcp-in-flight").finding().word_for("move"),))
    questions, found = ask_there()
    if request.send_files and found.lacking:
        files = plan_sending(questions, found)
        if request.check:
            # Nothing else prevents the move, and these files would be sent.
            return replace(found, blockers=(), lacking=files)
        send_files(peer.connection, files, report.sending)
        _, found = ask_there()
    found.check(preflight=request.options.preflight)
    own = {descriptor.socket_inode for descriptor in target.observed.descriptors}
    others = find_other_users(list_source_addresses(request.options.addresses), own)
    return replace(found, warnings=(*found.warnings, *others))


def serve(make_context: Callable[[], Context]) -> None:
    """Receive processes over the standard input and output, until the source ends the connection.

    The source is told why there is no context or no store.
    """
    # Nothing else may be written there.
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(2, 1)
    with Connection(incoming, outgoing, "the source") as connection, ExitStack() as stack:
        hello = connection.receive(messages.Hello)
        what = "crckpt receive"
        try:
            context = make_context()
            what = f"the store {context.store}"
            repository = stack.enter_context(_opened_store(context, is_check=hello.is_check))
            connection.send(make_hello(context, repository))
            destination = Destination(context, repository, connection, hello)
        except (CrckptError, OSError) as error:
            failure = to_crckpt_error(error, HostCannot, what)
            connection.send(messages.make_failed(failure))
            raise failure from error
        destination.serve()


@contextmanager
def _opened_store(context: Context, *, is_check: bool) -> Iterator[Repository]:
    """Open the store, or make one; for a check, have an empty one in the place of a missing one."""
    if not (is_check and is_blank(context.store)):
        yield context.repository(create=True)
        return
    # Next to where the store would be: a check finds that nothing can be written there.
    beside = space.nearest_existing(context.store.absolute().parent)
    with TemporaryDirectory(prefix=".crckpt-check-", dir=beside) as directory:
        yield Repository.open(Path(directory) / "store", create=True)


def _connected_for(request: MigrateRequest, context: Context, repository: Repository) -> AbstractContextManager[Peer]:
    clock = request.bandwidth_clock
    return connected(
        *(request.host, request.remote_crckpt, request.remote_store, context, repository),
        bandwidth=Bandwidth(request.bandwidth, clock) if request.bandwidth is not None else None,
        is_check=request.check,
    )
