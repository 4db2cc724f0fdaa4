"""The nouns as frozen values. No I/O."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NewType, TypeAlias

from msgspec import Meta, Struct

# What is decoded as one of these types is matched as a whole, and in range: stores come from elsewhere, too.
CheckpointId = NewType("CheckpointId", Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")])
"""The SHA-256 of a checkpoint's manifest, 64 hex digits."""

JobName = NewType("JobName", Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")])
"""A named series of checkpoints: letters, digits, `.`, `_`, `-`; begins with a letter or digit; at most 100."""

RunId: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z-]{1,64}\Z")]
"""What a run of CRIU calls itself: its network lock has this in its name."""

Word: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]
"""What can be an argument of a program."""

Pid: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
"""A process, thread, group or session; 0 is one outside the namespace."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""How many; of bytes, too."""

Milliseconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]

PAGE_SIZE = 4096
"""Bytes in a page of the store and of CRIU's images on every supported architecture (x86-64)."""

MEBIBYTE = 1 << 20


_EARLIEST: Final = datetime(2, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""A year within what datetime can tell: so each can be shown in every time zone."""


def moment(seconds: float) -> datetime:
    """The moment so many seconds after 1970, as a file system tells it, in UTC.

    File systems know years that datetime does not (`touch -d @253402300900`): of those, the nearest that it can tell.
    """
    nearest = min(max(seconds, _EARLIEST.timestamp()), _LATEST.timestamp())
    return datetime.fromtimestamp(nearest, UTC)


def release(version: str) -> tuple[int, int] | None:
    """The release of CRIU that has this version: (4, 2) of 4.2.1; None if that is not known."""
    found = re.match(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])", version)
    return (int(found[1]), int(found[2])) if found else None


class Task(Struct, frozen=True):
    """One process of a dumped tree, as the manifest remembers it."""

    pid: Pid
    ppid: Pid
    comm: str
    threads: tuple[Pid, ...]


class Host(Struct, frozen=True):
    """Where a checkpoint was made."""

    hostname: str
    kernel: str
    arch: str
    page_size: Count
    cpu_features: tuple[str, ...]
    criu_version: str
    criu_digest: str


class Statistics(Struct, frozen=True):
    """Times in milliseconds, sizes in bytes, of one checkpoint.

    `frozen_ms` is how long the tree stood still; `raw` the size of CRIU's images, `new` what the store did not hold
    yet (uncompressed), `copied` what of it was stored again so that old packs can go (uncompressed), `stored` what both
    became on disk, pack overhead included. Of the pages, `inherited` are those that CRIU left to the parent.
    """

    frozen_ms: Milliseconds
    dump_ms: Milliseconds
    commit_ms: Milliseconds
    raw_bytes: Count
    new_bytes: Count
    stored_bytes: Count
    pages: Count
    zero_pages: Count
    shared_pages: Count
    copied_bytes: Count = 0
    inherited_pages: Count = 0


class Options(Struct, frozen=True):
    """What CRIU is told at a dump beyond where and whom; the restore repeats it.

    `tcp` is what happens to established connections (None: there are none). `ghost_limit` is the largest deleted but
    open file in bytes, `external` resources that stay outside (CRIU's `--external`). `network_lock` is how packets are
    held back from a tree that has a network namespace of its own, None for one that has not. With `skip_in_flight` TCP
    connections that wait to be accepted are left out.
    """

    tcp: Literal["keep", "close"] | None = None
    shell_job: bool = False
    file_locks: bool = False
    link_remap: bool = False
    ext_unix_sk: bool = False
    ghost_limit: Count = 0
    external: tuple[Word, ...] = ()
    network_lock: Literal["nftables", "skip"] | None = None
    skip_in_flight: bool = False
