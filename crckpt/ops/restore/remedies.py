"""What the remedies of a restore name: its checkpoint, and an older one if there is one."""

from __future__ import annotations

from crckpt.causes.refusal import Refusal
from crckpt.errors import CrckptError
from crckpt.ops.restore.attempt import RestoreAttempt
from crckpt.store.known_damage import FIND_REPAIR, DamagedCheckpoint


def name_attempt(attempt: RestoreAttempt) -> str:
    """Name the checkpoint of an attempt, for commands."""
    # With --or-older, the ref may name a newer checkpoint than that of this attempt.
    return attempt.checkpoint.short_id if attempt.request.or_older else attempt.request.ref


def list_values(attempt: RestoreAttempt) -> dict[str, str]:
    """List the values of the attempt's findings: `ref`, and `older`, which offers an older checkpoint."""
    older = f"; or restore an older checkpoint: crckpt restore {attempt.request.ref} --or-older"
    if len(attempt.repository.back_from(attempt.checkpoint)) == 1:
        older = f"; {attempt.checkpoint.job} has no older checkpoint"
    elif attempt.request.or_older:
        older = ""
    return {"ref": name_attempt(attempt), "older": older}


def fill_in_failure(failure: CrckptError, attempt: RestoreAttempt) -> CrckptError:
    """Return the failure of an attempt with remedies that can be typed as they are."""
    if isinstance(failure, Refusal):
        return failure.fill(**list_values(attempt))
    if isinstance(failure, DamagedCheckpoint) and not failure.has_own_hint:
        return failure.reword(hint=f"{FIND_REPAIR}{list_values(attempt)['older']}")
    return failure
