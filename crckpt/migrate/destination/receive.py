"""The destination's side of a move: answer the source, and restore the tree in a hold that the source releases."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import Final

from msgspec import to_builtins
from msgspec.structs import replace

from crckpt.causes import Refusal, cause
from crckpt.criu.hold import AfterCommit
from crckpt.errors import CrckptError, HostCannot, IntegrityError, MoveInDoubt, PreflightRefused, RestoreFailed
from crckpt.helper.address_guard.client import GuardedAddresses
from crckpt.helper.scope import leave_session
from crckpt.host import proc
from crckpt.host.network.late_packets import deliver
from crckpt.host.steps import step
from crckpt.host.syscalls.userfaultfd import find_refusal
from crckpt.migrate.addresses import check_destination, list_destination_addresses
from crckpt.migrate.destination import recorded
from crckpt.migrate.preflight.answers import answer, compare
from crckpt.migrate.preflight.questions import decode_files, decode_questions
from crckpt.migrate.transfer.receive_packs import Receiver
from crckpt.migrate.transfer.send_files import receive_files, receive_tails
from crckpt.migrate.transfer.send_packs import SourcePacks
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.connection_errors import AbortReceived, ConnectionLost
from crckpt.model import JobName, MoveId
from crckpt.ops.context import Context
from crckpt.ops.failures import to_crckpt_error
from crckpt.ops.lazy.client import Filler, started_filler
from crckpt.ops.lazy.plan import choose_hot_packs
from crckpt.ops.restore.attempt import RestoreResult
from crckpt.ops.restore.restore import check_restore, restore
from crckpt.store import Checkpoint, Repository
from crckpt.store.backend.local import Fetch
from crckpt.store.format.manifest import unseal
from crckpt.store.layout import manifest_name
from crckpt.store.move_states import State
from crckpt.store.moves import Move, advance, begin_move, read_move, store_move, take_over
from crckpt.store.read.contents import contents_of
from crckpt.store.read.frames import UnpackedFrames
from crckpt.store.transaction import end_unfinished_restores

_MOST_RESTORES: Final = 3
_ANSWERED: Final = (
    *(messages.Questions, messages.Files, messages.Tails, messages.Compare, messages.Offer),
    *(messages.CheckRestore, messages.Prepare, messages.Resume, messages.Abort),
)


class Destination:
    """The destination of moves over one connection. `hello` is of the source."""

    def __init__(self, context: Context, repository: Repository, connection: Connection, hello: messages.Hello) -> None:
        self._context = context
        self._repository = repository
        # Where the checkpoint is read from.
        self._store = repository
        self._connection = connection
        self._source = hello.hostname
        self._peer_store = hello.store
        self._shares_kernel = hello.boot_id == proc.boot_id()
        self._move: Move | None = None
        # The id of the job's last move when the source asked its questions: another crckpt may begin one meanwhile.
        self._last_id: str | None = None
        self._release_warning = ""
        self._released_at = 0.0
        self._late_packets: tuple[bytes, ...] = ()
        # The session of ssh in which we run, if we cannot leave it; None: that was not tried yet.
        self._kept_session: str | None = None
        self._transaction = ExitStack()
        self._claimed = ExitStack()
        self._guard: GuardedAddresses | None = None
        self._unpacked: UnpackedFrames | None = None
        self._filler: Filler | None = None
        # Post-copy: the tree runs before its packs are in the store here, and depends on the connection until they are.
        self._late_packs: SourcePacks | None = None
        self._receiver = self._enter_store()

    def _enter_store(self) -> Receiver:
        """Begin to receive. Packs that no manifest names yet are not removed as long as this lasts."""
        return Receiver(self._repository, self._transaction.enter_context(self._repository.transaction()))

    def serve(self) -> None:
        """Answer the source until it ends the connection. Raises MoveInDoubt if a move is unfinished then."""
        try:
            while True:
                self._serve_next()
        except ConnectionLost as error:
            if self._move is not None and self._move.state == "receiving":
                self._give_up(error.message)
            elif self._move is not None and not self._move.is_over:
                raise recorded.explain_loss(self._move, error, is_late=self._store is not self._repository) from error
        finally:
            self._drop_unpacked()
            self._claimed.close()
            self._transaction.close()

    def _serve_next(self) -> None:
        message = self._connection.receive(*_ANSWERED)
        try:
            self._answer(message)
        except (ConnectionLost, MoveInDoubt):
            raise
        except AbortReceived as abort:
            # It came while packs or files were received.
            self._give_up(abort.why)
            self._connection.send(messages.Aborted())
        except (CrckptError, OSError) as error:
            self._connection.send(messages.make_failed(to_crckpt_error(error, RestoreFailed, "the move")))

    def _answer(self, message: messages.MoveMessage) -> None:
        match message:
            case messages.Questions():
                self._connection.send(self._answer_questions(message))
            case messages.Files():
                receive_files(self._connection, message)
            case messages.Tails():
                receive_tails(self._connection, message)
            case messages.Compare():
                self._connection.send(messages.Compared(compare(decode_files(message.content))))
            case messages.Offer():
                self._receiver.answer_offer(self._connection, message)
            case messages.CheckRestore():
                self._connection.send(self._check_restore(message))
            case messages.Prepare():
                self._build(message)
            case messages.Resume():
                state, move = recorded.read_state(self._repository, message, self._source)
                # An Abort is of that move then.
                self._move = move or self._move
                self._connection.send(state)
            case messages.Abort():
                self._give_up(message.why)
                self._connection.send(messages.Aborted())

    def _answer_questions(self, message: messages.Questions) -> messages.Answers:
        questions = decode_questions(message.content)
        last = read_move(self._repository.backend, questions.job)
        self._last_id = last.id if last is not None else ""
        # They may have PIDs and ports that the tree needs.
        end_unfinished_restores(self._repository.backend.scratch)
        now = recorded.end_unfinished_tree(self._repository, last) if last is not None else None
        unfinished = (now.id, now.state) if now is not None and not now.is_over else None
        answers = answer(questions, self._context, unfinished, shares_kernel=self._shares_kernel)
        self._drop_unpacked()
        # The helper reads the store itself.
        self._unpacked = None if questions.lazy else UnpackedFrames(questions.memory)
        refused = check_destination(list_destination_addresses(questions.moved_addresses))
        if questions.lazy and (why := find_refusal()):
            refused = (*refused, cause("lazy-refused").finding(why=why))
        return messages.Answers(messages.encode(replace(answers, blockers=(*answers.blockers, *refused))))

    def _claim(self, move_id: MoveId, options: messages.RestoreOptions, checkpoint: Checkpoint) -> None:
        """Claim the addresses that move along, if that was not done yet: behind a fence, so that nobody notices.

        Their guard is started in any case: it ends the tree if crckpt and CRIU are killed before that runs.
        """
        if self._guard is not None:
            return
        addresses = list_destination_addresses(options.addresses)
        try:
            self._guard = self._claimed.enter_context(recorded.claimed_addresses(addresses, move_id, checkpoint))
        except HostCannot:
            if addresses:
                raise

    def _check_restore(self, message: messages.CheckRestore) -> messages.Verdict:
        if message.options.lazy == "source":
            store, checkpoint, _ = self._open_late(message)
        else:
            store, checkpoint = self._repository, self._receiver.check_checkpoint(message.manifest, message.checkpoint)
        self._leave_session(checkpoint.job)
        self._claim(message.move, message.options, checkpoint)
        if message.options.lazy and self._filler is None:
            taken = {number for task in checkpoint.tree for number in (task.pid, *task.threads)}
            self._filler = self._claimed.enter_context(started_filler(taken))
        try:
            request = recorded.make_restore_request(checkpoint.id, message.options)
            request = replace(request, still_runs=True, shares_kernel=self._shares_kernel)
            found = check_restore(request, self._context, checkpoint, store)
        except PreflightRefused as refused:
            said = cause("restore-refused").finding(what=refused.message, advice=refused.hint)
            return messages.Verdict(refused.findings if isinstance(refused, Refusal) else (said,), ())
        if self._unpacked is not None:
            # The restore of the last checkpoint then only reads what was written since.
            self._unpacked.begin(contents_of(self._repository, checkpoint))
        return messages.Verdict((), found.verdict.warnings)

    def _drop_unpacked(self) -> None:
        unpacked, self._unpacked = self._unpacked, None
        if unpacked is not None:
            unpacked.stop()

    def _leave_session(self, job: JobName) -> None:
        """Leave the session of ssh, if that was not tried yet: systemd may end it with all that is in it."""
        if self._kept_session is None:
            self._kept_session = leave_session(f"crckpt-{job}", f"{job}, which crckpt moved from {self._source}")

    def _open_late(self, message: messages.CheckRestore | messages.Prepare) -> tuple[Repository, Checkpoint, Fetch]:
        """Open the store as if it had the checkpoint of a message; its packs are read at the source. For post-copy."""
        if self._late_packs is None:
            self._late_packs = SourcePacks(self._connection)
        checkpoint, fetch = unseal(message.manifest, message.checkpoint), self._late_packs.fetch
        return self._repository.with_late_packs(checkpoint, message.manifest, fetch), checkpoint, fetch

    # The hand-over

    def _build(self, message: messages.Prepare) -> None:
        """Store the checkpoint, build its tree, hold it until the source's own has ended, and let it run."""
        self._begin(message)
        self._leave_session(message.job)
        filler, is_late = self._filler, message.options.lazy == "source"
        if is_late:
            self._store, checkpoint, fetch = self._open_late(message)
            if filler is not None:
                filler.serve(message.manifest, fetch)
        else:
            self._store = self._repository
            checkpoint = self._receiver.store_checkpoint(message.manifest, message.checkpoint)
            if filler is not None:
                filler.hot = choose_hot_packs(checkpoint, self._receiver.newest)
        if checkpoint.job != message.job:
            # The record of its own job may forbid a restore.
            raise IntegrityError(f"the checkpoint {checkpoint.short_id} is of {checkpoint.job}, not of {message.job}")
        self._claim(message.move, message.options, checkpoint)
        result = self._restore_until_it_runs(message)
        deliver(self._late_packets, list_destination_addresses(message.options.addresses))
        left = self._guard.keep() if self._guard is not None else ""
        if not is_late:
            self._advance("done")
        failed = [cause("address-left").finding(what=what) for what in (self._release_warning, left) if what]
        if self._kept_session:
            failed.append(cause("session-kept").finding(group=self._kept_session))
        warnings = (*result.verdict.warnings, *failed)
        assert result.pid is not None
        log = result.holder.log if result.holder is not None else ""
        ran_for_ms = (time.monotonic() - self._released_at) * 1000
        self._connection.send(messages.Running(result.pid, result.restore_ms, warnings, log, ran_for_ms))
        self._drop_unpacked()
        if is_late:
            self._complete(filler, message)
        elif filler is not None:
            filler.close()
        recorded.wait_until_decided(self._move)  # the helper needs the processors first
        # Only now: the next checkpoint of the tree needs them.
        self._receiver.cache_fingerprints()

    def _complete(self, filler: Filler | None, message: messages.Prepare) -> None:
        """Receive the packs of a tree that runs, store its checkpoint, and wait until its memory is complete.

        If that fails, the tree has ended, and the record stays `committed`: the source, whose record is `ended`, hands
        its checkpoint over again.
        """
        try:
            self._receiver.answer_offer(self._connection, self._connection.receive(messages.Offer))
            self._receiver.store_checkpoint(message.manifest, message.checkpoint)
            if filler is not None:
                filler.wait_until_filled()
        except (CrckptError, OSError):
            if filler is not None:
                filler.close()
            recorded.wait_until_decided(self._move)
            raise
        self._advance("done")
        self._connection.send(messages.Complete())

    def _begin(self, message: messages.Prepare) -> None:
        last = read_move(self._repository.backend, message.job)
        before = recorded.end_unfinished_tree(self._repository, last) if last is not None else None
        if before is not None and before.id == message.move and before.side == "destination":
            recorded.refuse_busy(before)
            if before.is_over:
                # CRIU has decided since the source asked for the state.
                raise PreflightRefused(f"the move of {message.job} is over here: {before.state}", hint="try again")
            recorded.give_up_left_addresses(before)
            self._move = store_move(self._repository.backend, take_over(before))
            return
        if before is not None and not before.is_over:
            raise PreflightRefused(
                f"another move of {message.job} is unfinished here",
                hint=f"finish it first: crckpt migrate --resume {before.id}",
            )
        move = replace(
            begin_move("destination", message.job, self._source, message.move),
            peer_store=self._peer_store,
            checkpoint=message.checkpoint,
            keeps_checkpoint=self._repository.backend.exists(manifest_name(message.checkpoint)),
            options=to_builtins(message.options),
        )
        step("move.receiving")
        self._move = store_move(self._repository.backend, move, replaces=self._last_id)

    def _restore(self, message: messages.Prepare) -> RestoreResult:
        request = recorded.make_restore_request(message.checkpoint, message.options)
        request = replace(request, shares_kernel=self._shares_kernel)
        if self._unpacked is not None:
            self._unpacked.stop()
        # After a failure the tree is restored as a whole.
        filler, self._filler = self._filler, None
        return restore(
            *(request, self._context),
            before_run=self._hold,
            unpacked=self._unpacked,
            filler=filler,
            repository=self._store,
        )

    def _hold(self, root: int, criu: int) -> AfterCommit:
        """Report that the tree is held, and wait for the end of the source's own. Return what to do once it runs."""
        assert self._move is not None
        live = recorded.expect_built(root, criu, self._guard)
        if self._move.state == "receiving":
            self._advance("prepared", root=live)
        else:
            self._move = store_move(self._repository.backend, replace(self._move, root=live))
        if self._move.state == "committed":
            return lambda: self._release(live)
        self._connection.send(messages.Prepared(root))
        # An Abort is raised: CRIU ends what it has built.
        self._late_packets = self._connection.receive(messages.Ended).packets
        self._advance("committed")
        return lambda: self._release(live)

    def _release(self, root: proc.LiveRoot) -> None:
        """Open the fence: the tree with this root runs next. Raise nothing."""
        self._release_warning = recorded.release_or_explain(self._guard, root)
        self._released_at = time.monotonic()

    def _restore_until_it_runs(self, message: messages.Prepare) -> RestoreResult:
        """Restore the tree; again, from the store, if the source's tree has ended. Else raises: nothing runs here."""
        try:
            return self._restore(message)
        except AbortReceived:
            raise
        except (CrckptError, OSError) as error:
            assert self._move is not None
            if self._move.state == "committed":
                for _ in range(_MOST_RESTORES - 1):
                    with suppress(CrckptError, OSError):
                        return self._restore(message)
            elif self._move.state == "receiving":
                self._give_up(str(error))
            raise

    def _give_up(self, why: str) -> None:
        """Abort the move: the tree keeps running at the source, and its checkpoint must never be restored here."""
        move = self._move
        if move is None or move.is_over:
            return
        self._advance("aborted", why=why)
        # Give up the addresses, then lift their fence.
        self._guard = self._filler = None
        self._claimed.close()
        recorded.give_up_left_addresses(move)
        # `remove` locks the store for itself alone, so our own share must end first.
        self._transaction.close()
        with suppress(CrckptError, OSError):
            if move.checkpoint is not None and not move.keeps_checkpoint:
                self._repository.remove((move.checkpoint,))
        self._receiver = self._enter_store()

    def _advance(self, state: State, **changes: object) -> None:
        assert self._move is not None
        step(f"move.{state}")
        self._move = store_move(self._repository.backend, advance(self._move, state, **changes))
