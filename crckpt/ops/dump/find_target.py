"""Find and pin the root of the tree to dump, which may be named by its job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from crckpt.errors import CrckptError, TargetNotRunning
from crckpt.host.process.pidfd import HeldProcess
from crckpt.host.target.resolve import pinned
from crckpt.model import JobName
from crckpt.ops.context import Context
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.last_checkpoint import LastCheckpoint, describe_place, read_last_checkpoint
from crckpt.store.names import NAME


@contextmanager
def pinned_target(request: DumpRequest, context: Context) -> Iterator[tuple[DumpRequest, HeldProcess]]:
    """Pin the root that `request.target` names, perhaps by a job of the store, while the block runs.

    Yield the request, with the PID and the job in the place of a job, and the root. Raises what `pinned` raises;
    TargetNotRunning names the place where the job runs if it runs elsewhere.
    """
    kind, colon, name = request.target.partition(":")
    last = None if colon or kind.isdecimal() else _read_last_checkpoint(context, kind)
    if last is not None:
        job = last.checkpoint.job
        root = last.find_running_root()
        if root is None:
            raise TargetNotRunning(
                f"crckpt knows no program of the job {job} that runs here",
                hint=f"restore it: crckpt restore {job}; if it was started anew, name its PID: crckpt dump PID {job}",
            )
        request = replace(request, target=str(root.pid), job=request.job or job)
    try:
        with pinned(request.target) as process:
            yield request, process
    except TargetNotRunning as error:
        last = _read_last_checkpoint(context, request.job or (name.removesuffix(".service") if kind == "unit" else ""))
        root = None if last is None else last.find_running_root()
        if last is None or root is None:
            raise
        job = last.checkpoint.job
        raise error.reword(hint=f"{job} runs {describe_place(root)}: crckpt dump {job}") from None


def _read_last_checkpoint(context: Context, job: str) -> LastCheckpoint | None:
    """Read the last checkpoint of a job; None if there is no such job."""
    with suppress(CrckptError, OSError):
        return read_last_checkpoint(context.repository(), JobName(job)) if NAME.fullmatch(job) else None
    return None
