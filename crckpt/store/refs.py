"""Refs: how people name checkpoints, and tags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError, NoSuchCheckpoint, UsageError
from crckpt.host.disk.files import losses_ignored
from crckpt.model import CheckpointId, JobName
from crckpt.store.backend.local import Backend
from crckpt.store.layout import ID, NAME, SHORT, TAGS

_AGE: Final = re.compile(r"(?P<job>[^~:]+)~(?P<back>[0-9]{1,9})")
_TAG: Final = re.compile(r"(?P<job>[^~:]+):(?P<tag>[^~:]+)")
_MOST_BYTES: Final = 1024
_MOST_SHOWN: Final = 8
_PREFIX: Final = re.compile(r"[0-9a-f]{4,64}")


class Tag(Struct, frozen=True):
    """`job:name` names the checkpoint `id`."""

    job: JobName
    name: str
    id: CheckpointId


class RefTargets(Struct, frozen=True):
    """The targets of refs: each job's checkpoints, oldest first; all ids, also of unreadable manifests; tags."""

    jobs: Mapping[JobName, Sequence[CheckpointId]]
    ids: tuple[CheckpointId, ...]
    tags: tuple[Tag, ...]


def resolve(ref: str, targets: RefTargets) -> CheckpointId:
    """Find the checkpoint that `ref` names: `JOB` (its newest), `JOB~N`, `JOB:TAG`, an id or 4 or more digits of one.

    A job's name goes before an id. Raises NoSuchCheckpoint, UsageError if the digits fit several.
    """
    if (match := _AGE.fullmatch(ref)) is not None:
        job, back = JobName(match["job"]), int(match["back"])
        series = targets.jobs.get(job)
        if series is None:
            raise _no_such("job", job, targets)
        if back >= len(series):
            raise NoSuchCheckpoint(
                f"{job} has only {len(series)} checkpoint{'s' * (len(series) > 1)}: there is no {ref}",
                hint=f"the oldest is {job}~{len(series) - 1}",
            )
        return series[-1 - back]
    if (match := _TAG.fullmatch(ref)) is not None:
        job, name = JobName(match["job"]), match["tag"]
        tags = {tag.name: tag.id for tag in targets.tags if tag.job == job and tag.id in targets.ids}
        if name in tags:
            return tags[name]
        if job not in targets.jobs:
            raise _no_such("job", job, targets)
        raise NoSuchCheckpoint(f"job {job!r} has no tag {name!r}", hint=_suggest_tags(name, job, list(tags)))
    if ref in targets.jobs:
        return targets.jobs[JobName(ref)][-1]
    fitting = sorted(found for found in targets.ids if found.startswith(ref)) if _PREFIX.fullmatch(ref) else []
    if not fitting:
        is_job = NAME.fullmatch(ref) and not _PREFIX.fullmatch(ref)
        raise _no_such("job" if is_job else "checkpoint", ref, targets)
    if len(fitting) > 1:
        shown = tuple(found[:SHORT] for found in fitting)
        raise UsageError(f"{ref} is the start of {len(fitting)} ids", hint="type more digits of the id", causes=shown)
    return fitting[0]


def remove_tag(backend: Backend, job: JobName, name: str) -> None:
    """Remove a tag. Raises NoSuchCheckpoint if there is none of that name."""
    is_name = NAME.fullmatch(job) and NAME.fullmatch(name)
    if not is_name or not backend.exists(f"{TAGS}/{job}/{name}"):
        tags = [tag.name for tag in read_tags(backend) if tag.job == job]
        raise NoSuchCheckpoint(f"job {job!r} has no tag {name!r}", hint=_suggest_tags(name, job, tags))
    backend.remove(f"{TAGS}/{job}/{name}", "tag")
    # A removal is durable only after this.
    backend.sync_names(f"{TAGS}/{job}", "tag")


def read_tags(backend: Backend) -> tuple[Tag, ...]:
    """Read all tags, in the order of their names."""
    found = []
    for job in filter(NAME.fullmatch, backend.names_in(TAGS)):
        for name in filter(NAME.fullmatch, backend.names_in(f"{TAGS}/{job}")):
            # The disk may have lost the file, or it was removed a moment ago.
            with suppress(FileNotFoundError, IntegrityError), losses_ignored():
                content = backend.read(f"{TAGS}/{job}/{name}", _MOST_BYTES).decode(errors="replace").strip()
                if ID.fullmatch(content):
                    found.append(Tag(JobName(job), name, CheckpointId(content)))
    return tuple(found)


def _suggest_tags(name: str, job: JobName, tags: Sequence[str]) -> str:
    if near := difflib.get_close_matches(name, tags, n=3):
        return f"did you mean {' or '.join(f'{job}:{found}' for found in near)}?"
    if tags:
        return f"its tags: {_enumerate(sorted(tags))}; its checkpoints: crckpt list {job}"
    return f"it has no tags; its checkpoints: crckpt list {job}"


def _no_such(kind: str, name: str, targets: RefTargets) -> NoSuchCheckpoint:
    """The error for a job without a checkpoint, or another ref that names none; its hint names what is there."""
    return NoSuchCheckpoint(f"there is no {kind} {name!r}", hint=_suggest(name, targets))


def _suggest(ref: str, targets: RefTargets) -> str:
    if not targets.jobs:
        return "the store is empty: crckpt dump PID makes a checkpoint"
    jobs = f"jobs in the store: {_enumerate(sorted(targets.jobs))}; all checkpoints: crckpt list"
    tags = (f"{tag.job}:{tag.name}" for tag in targets.tags if tag.id in targets.ids)
    if near := difflib.get_close_matches(ref, [*targets.jobs, *tags], n=3, cutoff=0.54):
        jobs = "" if set(targets.jobs) <= set(near) else f" {jobs}"
        return f"did you mean {' or '.join(near)}?{jobs}"
    return jobs


def _enumerate(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join((*names[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])))
