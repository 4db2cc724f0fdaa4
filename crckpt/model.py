"""The nouns of crckpt as frozen values. No I/O."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, NewType, TypeAlias

from msgspec import Meta, Struct

# Decoders check every value of these types for its pattern and range: a store may come from another host. msgspec
# searches for a pattern: only \A and \Z make it match the whole string.
CheckpointId = NewType("CheckpointId", Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")])
"""The SHA-256 of a checkpoint's manifest, 64 hex digits."""

JobName = NewType("JobName", Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")])
"""The name of a series of checkpoints: at most 100 letters, digits, `.`, `_`, `-`; begins with a letter or digit."""

RunId = NewType("RunId", Annotated[str, Meta(pattern=r"\A[0-9A-Za-z-]{1,64}\Z")])
"""The id of a run of CRIU, which is part of the name of its network lock."""

MoveId = NewType("MoveId", Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")])
"""The id of a move, which both hosts have."""

PackId = NewType("PackId", str)
"""The SHA-256 of a pack's frame table, 64 hex digits. Whoever decodes it checks that."""

StoreId = NewType("StoreId", str)
"""The id of a store."""

Argument: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]
"""A string that can be an argument of a program."""

Pid: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
"""The id of a process, thread, group or session; 0 is one outside the namespace."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A number of things or bytes."""

Milliseconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]

PAGE_SIZE = 4096
"""Bytes in a page of the store and of CRIU's images on every supported architecture (x86-64)."""

MEBIBYTE = 1 << 20


_EARLIEST: Final = datetime(2, 1, 1, tzinfo=UTC)
# A year inside the limits of datetime: so both can be shown in every time zone.
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)


def utc_datetime(seconds: float) -> datetime:
    """Convert a time of a file system, in seconds since 1970, to UTC.

    A file system has years that datetime lacks (`touch -d @253402300900`): these become the nearest year that it has.
    """
    nearest = min(max(seconds, _EARLIEST.timestamp()), _LATEST.timestamp())
    return datetime.fromtimestamp(nearest, UTC)


def criu_release(version: str) -> tuple[int, int] | None:
    """Return the release of a CRIU version: (4, 2) for 4.2.1; None if the version is not known."""
    found = re.match(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])", version)
    return (int(found[1]), int(found[2])) if found else None


class Task(Struct, frozen=True):
    """One process of a dumped tree, as the manifest records it."""

    pid: Pid
    ppid: Pid
    comm: str
    threads: tuple[Pid, ...]


class Host(Struct, frozen=True):
    """The host on which a checkpoint was made."""

    hostname: str
    kernel: str
    arch: str
    page_size: Count
    cpu_features: tuple[str, ...]
    criu_version: str
    criu_digest: str


class Statistics(Struct, frozen=True):
    """The statistics of one checkpoint, times in milliseconds.

    - `frozen_ms`: how long the tree was frozen; of a dump that ended it, until crckpt began to store its images
    - `raw_bytes`: the size of CRIU's images
    - `new_bytes`: what the store did not have yet, uncompressed
    - `copied_bytes`: what was stored again so that old packs can be removed, uncompressed
    - `stored_bytes`: the size on disk of `new_bytes` and `copied_bytes`, compressed, with the overhead of packs
    - `inherited_pages`: the pages that CRIU left to the parent
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


class DumpOptions(Struct, frozen=True):
    """CRIU's options for a dump, besides paths and PID. The restore repeats them.

    - `tcp`: what happens to established connections; None if there are none
    - `ghost_limit`: the size in bytes of the largest deleted file that CRIU may copy; 0 for its default
    - `external`: resources outside the tree (`--external`)
    - `network_lock`: how CRIU holds back packets for a tree with its own network namespace; None for any other
    - `skip_in_flight`: leave out TCP connections that wait to be accepted
    """

    tcp: Literal["keep", "close"] | None = None
    shell_job: bool = False
    file_locks: bool = False
    link_remap: bool = False
    ext_unix_sk: bool = False
    ghost_limit: Count = 0
    external: tuple[Argument, ...] = ()
    network_lock: Literal["nftables", "skip"] | None = None
    skip_in_flight: bool = False
