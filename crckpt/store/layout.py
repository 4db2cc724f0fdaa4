"""The names of a store's files, as `crckpt.store` specifies them, and the form of jobs, tags and ids in them. Pure."""

from __future__ import annotations

import re
from typing import Final

from crckpt.errors import IntegrityError, UsageError
from crckpt.model import CheckpointId, JobName, MoveId, PackId

# Part of a path, and typed as an argument: no slash, and neither a dot nor a hyphen at the start.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A job or a tag."""

ID: Final = re.compile(r"[0-9a-f]{64}")
"""A checkpoint's id or a pack's digest: a SHA-256."""

IMAGE: Final = re.compile(r"(?!\.{1,2}\Z)[^/\x00-\x1f\x7f]{1,255}")
"""An image file: a name in one directory."""

# C0 and C1 controls, DEL, and the separators of lines and paragraphs: `list` and `show` print a note on one line.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

SHORT: Final = 12
"""Digits of an id in messages."""


def check_name(name: str, what: str) -> str:
    """Return `name` if it is a valid name of a job or tag (`what`). Raises UsageError."""
    if NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{name!r} is not a valid {what} name",
        hint="use at most 100 letters, digits, '.', '_' and '-'; begin with a letter or digit",
    )


def check_note(note: str) -> str:
    """Return `note` if it is one line of text. Raises UsageError."""
    if _CONTROL.search(note) is None:
        return note
    raise UsageError(
        f"--note: {note!r} is not one line of text", hint="leave out line breaks, tabs and control characters"
    )


def check_id(name: str) -> str:
    """Return `name` if it is an id or a digest, and so may be a part of a path. Raises IntegrityError."""
    # A manifest from elsewhere may have a path for a digest: `verify` once deleted the file to which one led.
    if ID.fullmatch(name):
        return name
    raise IntegrityError(f"{name[:SHORT]!r} is not a SHA-256")


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
