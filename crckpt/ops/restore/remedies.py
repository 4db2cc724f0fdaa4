"""Fill in the remedies of a restore: the catalogue writes REF, and does not know which checkpoints the job has."""

from __future__ import annotations

import re
from typing import Final, TypeVar

from msgspec.structs import replace

from crckpt.causes import Finding
from crckpt.errors import CrckptError, PreflightRefused
from crckpt.ops.restore.attempt import RestoreAttempt

Failure = TypeVar("Failure", bound=CrckptError)

# In this form all remedies offer it, so that it can be left out.
_OFFER: Final = re.compile(r"(?:^|; or )restore an older checkpoint: crckpt restore \S+ --or-older")
_REF: Final = re.compile(r"(?<=\bcrckpt )(\w+) REF\b")


def name_ref(remedy: str, ref: str) -> str:
    """Put the ref of a checkpoint into the commands of a remedy."""
    return _REF.sub(lambda found: f"{found[1]} {ref}", remedy)


def fill_in_failure(failure: Failure, attempt: RestoreAttempt) -> Failure:
    """Return the failure of an attempt with remedies that can be typed as they are."""
    filled = failure.reword(failure.message, hint=_offer_older(failure.hint, attempt))
    if isinstance(filled, PreflightRefused):
        # Of any other failure the causes are lines of CRIU's log.
        filled.causes = tuple(_offer_older(line, attempt) for line in filled.causes)
        filled.findings = tuple((what, _offer_older(remedy, attempt)) for what, remedy in filled.findings)
    return filled


def fill_in_warnings(warnings: tuple[Finding, ...], attempt: RestoreAttempt) -> tuple[Finding, ...]:
    """Return the warnings of an attempt with remedies that can be typed as they are."""
    return tuple(replace(warning, remedy=_name_attempt(warning.remedy, attempt)) for warning in warnings)


def _name_attempt(remedy: str, attempt: RestoreAttempt) -> str:
    # With --or-older, the ref may name a newer checkpoint than that of this attempt.
    return name_ref(remedy, attempt.checkpoint.short_id if attempt.request.or_older else attempt.request.ref)


def _offer_older(remedy: str, attempt: RestoreAttempt) -> str:
    """Offer an older checkpoint only if there is one that this restore does not try anyway."""
    offer = _OFFER.search(remedy)
    if offer is None:
        return _name_attempt(remedy, attempt)
    before = _name_attempt(remedy[: offer.start()], attempt)
    lead = f"{before}; " if before else ""
    if len(attempt.repository.back_from(attempt.checkpoint)) == 1:
        return f"{lead}{attempt.checkpoint.job} has no older checkpoint"
    if attempt.request.or_older:
        return before
    return f"{lead}or restore an older checkpoint: crckpt restore {attempt.request.ref} --or-older"
