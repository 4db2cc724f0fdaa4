"""Copy what was written since the last round, or dump, while the tree runs: the next dump counts from there."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from crckpt.criu.find import Criu
from crckpt.errors import DumpFailed, HostCannot, Interrupted
from crckpt.host.process.signals import interrupts_put_off
from crckpt.host.target.hold import held
from crckpt.model import JobName
from crckpt.ops.context import Context, need_root
from crckpt.ops.dump.aftermath import tree_state_said
from crckpt.ops.dump.examine import Subject, subject_of
from crckpt.ops.dump.lineage import Copied, Tracked, way
from crckpt.ops.dump.request import Request
from crckpt.ops.dump.rounds import take
from crckpt.ops.failures import as_ours, limited_waits_of_dump, untouched_said
from crckpt.store import Repository


class PreDumped(Struct, frozen=True):
    """The round that was taken, and by which CRIU; `tracked` says what it counts from."""

    job: JobName
    pid: int
    criu: Criu
    tracked: Tracked
    copied: Copied


def pre_dump(request: Request, context: Context) -> PreDumped:
    """Take a round. It is kept by the tree's keeper, and ends with it.

    Raises UsageError, PreflightRefused, HostCannot (nothing tells what was written, and why), StoreUnusable,
    StoreLocked, DumpFailed or Interrupted, which a round that was taken is not; the tree runs on in any case.
    """
    done: PreDumped | None = None
    try:
        with ExitStack() as stack:
            with untouched_said():
                need_root("to checkpoint a process")
                target = stack.enter_context(held(request.target))
                stack.enter_context(limited_waits_of_dump(target.pid))
                subject = subject_of(request, context, target)
                repository = context.repository(create=True)
                stack.enter_context(repository.shared())
                work = stack.enter_context(repository.transaction()).path
                # Between the two, an interruption would end in half a sentence.
                stack.enter_context(interrupts_put_off())
            with tree_state_said(subject.seen.tree, work / "pre-dump.log", repository):
                done = _taken(subject, repository, work)
    except Interrupted:
        if done is None:
            raise
    return done


def _taken(subject: Subject, repository: Repository, work: Path) -> PreDumped:
    root = subject.seen.tree.root
    found = way(root, subject.criu.path, wanted=True, apart=subject.apart)
    assert found is not None
    try:
        copied = take(replace(subject, way=found), found, repository, work)
    except HostCannot as error:
        hint = f"crckpt dump {subject.request.target} {subject.job} makes a full checkpoint"
        raise HostCannot(f"nothing was copied: {error.message}", hint=hint) from error
    except OSError as error:
        raise as_ours(error, DumpFailed, "the round") from error
    finally:
        found.close()
    return PreDumped(subject.job, root.pid, subject.criu, found.told, copied)
