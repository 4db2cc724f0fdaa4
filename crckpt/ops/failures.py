"""Findings and CRIU's log as errors: what happened, why, and what to type next."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from crckpt.causes import Finding
from crckpt.criu.engine import CriuResult
from crckpt.errors import CrckptError, DumpFailed, Interrupted, PreflightRefused, StoreUnusable, UsageError
from crckpt.host.disk import fuse
from crckpt.host.proc import effective_capabilities
from crckpt.host.process.progress import QUIET_S

if TYPE_CHECKING:
    from crckpt.criu.explain import Explanation, Place

_FULL = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file grew too large",
}

_CAPABILITIES = {
    8: "CAP_SETPCAP",
    12: "CAP_NET_ADMIN",
    19: "CAP_SYS_PTRACE",
    21: "CAP_SYS_ADMIN",
    24: "CAP_SYS_RESOURCE",
    40: "CAP_CHECKPOINT_RESTORE",
}
"""linux/capability.h: what a dump or restore may need of root."""

_TELLS_LESS = {
    "device": ("bpf-map",),
    "cannot-trace": ("traced", "being-dumped"),
    "other-name": ("file-hidden",),
    "packet-details": ("socket-namespace",),
    "tcp-state": ("socket-namespace",),
}
"""What CRIU's log says -> what the preflight says of the same."""

Failure = TypeVar("Failure", bound=CrckptError)


def refused(blockers: Sequence[Finding], *, is_in_use: bool = False) -> PreflightRefused:
    """The error for blockers: the message is that of the first one. `is_in_use` as in PreflightRefused."""
    first, more = blockers[0], len(blockers) - 1
    said = f"{first.what} (and {more} more)" if more else first.what
    causes = tuple(str(finding) for finding in blockers)
    return PreflightRefused(said, hint=first.remedy, causes=causes, is_in_use=is_in_use)


def as_ours(error: CrckptError | OSError, kind: type[CrckptError], what: str) -> CrckptError:
    """What the system refused, as an error of that kind; a full disk as StoreUnusable; our own errors as they are."""
    if isinstance(error, CrckptError):
        return error
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        hint = "free space (crckpt rm, crckpt gc), or use --store on a larger disk"
        return StoreUnusable(f"{_FULL[error.errno]} for {what}{where}", hint=hint)
    return kind(f"{what} failed: {error.strerror or error}{where}", hint="crckpt doctor says what this host can do")


def _with_missing_capabilities(remedy: str) -> str:
    """The remedy; if it is a capability, followed by those that crckpt lacks."""
    lacking = [name for number, name in _CAPABILITIES.items() if number not in effective_capabilities()]
    if not lacking or ("CAP_" not in remedy and "capabilit" not in remedy):
        return remedy
    return f"{remedy}; crckpt runs without {', '.join(lacking)}"


def _disconnected(mount: str) -> tuple[str, str]:
    hint = f"mount it again (fusermount3 -u {shlex.quote(mount)} first), then try again"
    return f"the file system on {mount} did not answer, and crckpt disconnected it", hint


@contextmanager
def limited_waits_of_dump(root: int) -> Iterator[None]:
    """During this block crckpt waits for no FUSE file system of the tree below `root` without limit.

    If the block fails then, the error names the file system. CRIU has a limit of its own: `crckpt.criu.stuck`.
    """
    with _limited_waits(lambda: (os.getpid(),), lambda: fuse.abort(fuse.tree_of(root))):
        yield


@contextmanager
def limited_waits_of_restore(users: frozenset[int]) -> Iterator[None]:
    """During this block crckpt and its CRIU wait for no FUSE file system of these users without limit.

    If the block fails then, the error names the file system.
    """

    def ours() -> tuple[int, ...]:
        return fuse.tree_of(os.getpid())

    with _limited_waits(ours, lambda: fuse.abort(ours(), users)):
        yield


@contextmanager
def _limited_waits(waiting: Callable[[], Iterable[int]], abort: Callable[[], tuple[str, ...]]) -> Iterator[None]:
    with fuse.limited_answers(waiting, abort) as aborted:
        try:
            yield
        except CrckptError as error:
            if not aborted:
                raise
            said, hint = _disconnected(aborted[0])
            raise type(error)(f"{said}: {error.message}", hint=hint, causes=error.causes) from error


@contextmanager
def untouched_said() -> Iterator[None]:
    """If the block, which does nothing to the tree, is interrupted or the system refuses something: say so."""
    try:
        yield
    except (Interrupted, OSError) as error:
        ours = as_ours(error, DumpFailed, "the dump")
        raise type(ours)(f"{ours.message}; nothing was begun, the tree runs on", hint=ours.hint) from error


@contextmanager
def written_to(target: Path, hint: str) -> Iterator[None]:
    """What the block writes is no part of the store: that there is no room for it is told of where it was to be."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UsageError(f"{_FULL[error.errno]} for {target}; nothing of it is left", hint=hint) from error


def explained(
    outcome: CriuResult,
    kind: type[Failure],
    what: str,
    resolved: Callable[[Explanation], Place | None],
    state: str = "",
    seen: Sequence[Finding] = (),
) -> Failure:
    """The error for a CRIU that failed; `what` failed, in words, and `state` is how things stand now.

    `resolved` gives the place by name: see `ops.resources`. `seen` is what the preflight found: of some causes the log
    says less.
    """
    # For failures only: its patterns and the catalogue take their time to load.
    from crckpt.criu.explain import explain

    told = explain(outcome.log)
    if outcome.waited_for:
        said, hint = _disconnected(outcome.waited_for[0])
        return kind(f"{what} failed: {said}{state}", hint=hint, causes=told.lines)
    if told.finding:
        place = resolved(told)
        where = f" ({place})" if place else ""
        known = _TELLS_LESS.get(told.finding.key, ())
        finding = next((found for found in seen if found.key in known), told.finding)
        hint = _with_missing_capabilities(finding.remedy)
        return kind(f"{what} failed: {finding.what}{where}{state}", hint=hint, causes=told.lines)
    if outcome.hung:
        said = f"CRIU made no progress for {QUIET_S:g} s, and crckpt ended it"
        hint = "check this host: crckpt doctor; if a process of the tree was killed meanwhile, try again"
        return kind(f"{what} failed: {said}{state}", hint=hint, causes=told.lines)
    how = f"status {outcome.status}" if outcome.status >= 0 else f"signal {-outcome.status}"
    said = told.lines[0] if told.lines and outcome.status >= 0 else f"CRIU ended with {how} and said nothing"
    return kind(f"{what} failed: {said}{state}", hint="crckpt doctor says what this host can do", causes=told.lines)
