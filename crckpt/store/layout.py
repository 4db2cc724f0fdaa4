"""The names of a store's files, as `crckpt.store` specifies them. Pure."""

from __future__ import annotations

from typing import Final

from crckpt.model import CheckpointId, JobName, MoveId, PackId
from crckpt.store.names import check_id, check_name

DESCRIPTION: Final = "store.json"

CHECKPOINTS: Final = "checkpoints"
"""A directory for each checkpoint, named by its id."""

PACKS: Final = "packs"
"""Packs, in directories named by the first two digits of their digests."""

REFS: Final = "refs"

TAGS: Final = "refs/tags"
"""A directory for each job, in it a file for each tag that holds an id."""

RESTORED: Final = "refs/restored"
"""A file for each checkpoint that was restored, named by its id; made when there is one."""

MOVES: Final = "refs/moves"
"""A file for each job that was moved, or is being moved, named by the job; made when there is one."""

UNREPORTED: Final = "refs/unreported"
"""A file for each aborted move that its destination does not know to be aborted, named by the id of the move, if the
job's record in `MOVES` is of another move since; made when there is one."""

FINGERPRINTS: Final = "cache/fingerprints"
"""Fingerprints of packs' pages; derived, may be deleted."""

SAMPLES: Final = "cache/samples"
"""Samples of the fingerprints of all packs; derived, may be deleted."""

FINGERPRINT_KEY: Final = "cache/fingerprints.key"
"""The secret key of the fingerprints; with it collisions can be made. May be deleted."""

CACHE: Final = "cache"
JOB_DETAILS: Final = "job-"
"""The beginning of the names in `cache` of what a dump checks of each job's last checkpoint."""

KNOWN_DAMAGE: Final = "cache/damaged"
"""The ids of checkpoints that were found to be damaged, for lists; may be deleted."""

LABEL: Final = "job-"
"""The beginning of the name of an empty file next to a manifest, which names the job if that is damaged."""

PENDING: Final = "pending"
"""Records of checkpoints that are not durable yet; made when there is one."""

SCRATCH: Final = "tmp"
"""What is in flight."""

LOCK: Final = "lock"
LOCKS: Final = "locks"
"""Records of those who hold the lock, and the locks of restores."""

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
