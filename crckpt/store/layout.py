"""The names of a store's files, as `crckpt.store` specifies them. Pure."""

from __future__ import annotations

from typing import Final

from crckpt.model import CheckpointId, JobName, MoveId, PackId
from crckpt.store.names import check_id, check_name

DESCRIPTION: Final = "store.json"
CHECKPOINTS: Final = "checkpoints"
PACKS: Final = "packs"
PENDING: Final = "pending"
REFS: Final = "refs"
TAGS: Final = "refs/tags"
RESTORED: Final = "refs/restored"
MOVES: Final = "refs/moves"
UNREPORTED: Final = "refs/unreported"
CACHE: Final = "cache"
FINGERPRINTS: Final = "cache/fingerprints"
SAMPLES: Final = "cache/samples"
FINGERPRINT_KEY: Final = "cache/fingerprints.key"
KNOWN_DAMAGE: Final = "cache/damaged"
SCRATCH: Final = "tmp"
LOCK: Final = "lock"
LOCKS: Final = "locks"

JOB_DETAILS: Final = "job-"
"""The beginning of the names in `cache` of what a dump checks of each job's last checkpoint."""

LABEL: Final = "job-"
"""The beginning of the name of the file next to a manifest that names the job."""

DIRECTORIES: Final = (CACHE, FINGERPRINTS, SAMPLES, CHECKPOINTS, LOCKS, PACKS, REFS, TAGS, SCRATCH)
"""What every store has. Other directories are made when the first file is put there."""


def pack_name(digest: PackId) -> str:
    """Return the name of a pack. Raises IntegrityError for what is no digest."""
    return f"{PACKS}/{check_id(digest)[:2]}/{digest}.pack"


def fingerprints_name(digest: PackId) -> str:
    """Return the name of the fingerprints of a pack. Raises IntegrityError for what is no digest."""
    return f"{FINGERPRINTS}/{check_id(digest)}"


def checkpoint_directory(checkpoint_id: CheckpointId) -> str:
    """Return the directory of a checkpoint. Raises IntegrityError for what is no id."""
    return f"{CHECKPOINTS}/{check_id(checkpoint_id)}"


def manifest_name(checkpoint_id: CheckpointId) -> str:
    """Return the name of a checkpoint's manifest. Raises IntegrityError for what is no id."""
    return f"{checkpoint_directory(checkpoint_id)}/manifest.json"


def job_label(job: JobName) -> str:
    """Return the name of the empty file that names a checkpoint's job next to its manifest."""
    return f"{LABEL}{job}"


def job_details_name(job: JobName) -> str:
    """Return the name of what is cached of a job's last checkpoint. Raises UsageError for what is no job."""
    return f"{CACHE}/{JOB_DETAILS}{check_name(job, 'job')}"


def restored_name(checkpoint_id: CheckpointId) -> str:
    """Return the name of the mark of a restored checkpoint. Raises IntegrityError for what is no id."""
    return f"{RESTORED}/{check_id(checkpoint_id)}"


def move_name(job: JobName) -> str:
    """Return the name of the record of a job's last move. Raises UsageError for what is no job."""
    return f"{MOVES}/{check_name(job, 'job')}"


def unreported_name(move_id: MoveId) -> str:
    """Return the name of the record of an aborted move. Raises UsageError for what is no id of a move."""
    return f"{UNREPORTED}/{check_name(move_id, 'move')}"
