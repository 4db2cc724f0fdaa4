"""Restore a tree that `--stop` holds frozen in isolation, before it is ended. Slow to import."""

from __future__ import annotations

import shlex
from typing import Final

from msgspec.structs import replace

from crckpt.errors import CrckptError, DumpFailed, RehearsalFailed
from crckpt.ops.context import ignore_progress
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.failures import to_crckpt_error
from crckpt.ops.restore.rehearse import RehearsalResult, rehearse_checkpoint
from crckpt.ops.restore.request import RehearsalRequest
from crckpt.store import Checkpoint, Repository

# The tree stays frozen for so long. What a restore breaks in a program mostly ends it at its first steps.
_SECONDS: Final = 0.5
_FAILED: Final = "the rehearsal failed: "


def rehearse_held(target: DumpTarget, repository: Repository, checkpoint: Checkpoint) -> RehearsalResult:
    """Rehearse a checkpoint whose packs are stored and whose manifest is not.

    Raises DumpFailed if the tree does not start in isolation or does not run on there, Interrupted.
    """
    # No checkpoint is made that could be named.
    request = RehearsalRequest(checkpoint.id, _SECONDS, is_stored=False)
    try:
        result = rehearse_checkpoint(request, replace(target.context, progress=ignore_progress), repository, checkpoint)
    except (CrckptError, OSError) as error:
        ours = to_crckpt_error(error, RehearsalFailed, "the rehearsal")
        said = ours.message if isinstance(ours, RehearsalFailed) else f"{_FAILED}{ours.message}"
        raise DumpFailed(said, hint=ours.hint, causes=ours.causes, is_explained=ours.is_explained) from error
    if result.failures:
        closed = "" if not result.closed else "; its TCP connections were closed, because the other side is not there"
        raise DumpFailed(
            f"{_FAILED}{result.failures[0]}{closed}",
            hint=f"look closer at a checkpoint of the tree that runs on: crckpt dump "
            f"{shlex.quote(target.request.target)} {target.job} && crckpt rehearse {target.job}",
            causes=result.failures,
        )
    return result
