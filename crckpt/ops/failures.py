"""Turn findings, system errors and a CRIU that failed into errors: what happened, why, and what to type next."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from crckpt.causes import Finding, Refusal, cause
from crckpt.criu.engine import CriuResult
from crckpt.errors import (
    UNCHANGED,
    CommandFailure,
    CrckptError,
    DumpFailed,
    Interrupted,
    PreflightRefused,
    StoreUnusable,
    UsageError,
)
from crckpt.host import proc
from crckpt.host.disk import fuse, space
from crckpt.host.proc import effective_capabilities
from crckpt.host.process.criu_progress import QUIET_S
from crckpt.host.process.typed_command import advise_space

if TYPE_CHECKING:
    from crckpt.criu.explain import Explanation, FailureLocation
    from crckpt.ops.context import Context

_FULL = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file grew too large",
}

# Those of root's that a dump or restore may need, by number. Source: linux/capability.h.
_CAPABILITIES = {
    8: "CAP_SETPCAP",
    12: "CAP_NET_ADMIN",
    19: "CAP_SYS_PTRACE",
    21: "CAP_SYS_ADMIN",
    24: "CAP_SYS_RESOURCE",
    40: "CAP_CHECKPOINT_RESTORE",
}

# By cause in CRIU's log, the causes by which crckpt names the same thing more exactly.
_NAMED_EXACTLY = {
    "device": ("bpf-map",),
    "cannot-trace": ("traced", "being-dumped"),
    "no-space": ("store-full", "staging-full"),
    "other-name": ("file-hidden",),
    "packet-details": ("socket-namespace",),
    "tcp-state": ("socket-namespace",),
}

Failure = TypeVar("Failure", bound=CrckptError)


def to_crckpt_error(error: CommandFailure | OSError, kind: type[CrckptError], what: str) -> CommandFailure:
    """A system error as an error of that kind, or as StoreUnusable if a disk is full; our own errors as they are."""
    if isinstance(error, CommandFailure):
        return error
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        return StoreUnusable(f"{_FULL[error.errno]} for {what}{where}", hint=advise_space())
    return kind(f"{what} failed: {error.strerror or error}{where}", hint="check this host: crckpt doctor")


def to_dump_error(error: CommandFailure | OSError, what: str, context: Context) -> CommandFailure:
    """As `to_crckpt_error`, of a dump: a full disk is named by the directory of the context that is on it."""
    if isinstance(error, CommandFailure) or error.errno != errno.ENOSPC:
        return to_crckpt_error(error, DumpFailed, what)
    full = find_full_directory(
        context, os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
    )
    return StoreUnusable(f"{what} failed: {full.what}", hint=full.remedy)


def find_full_directory(context: Context, written: str | None = None) -> Finding:
    """Find which directory of a dump is full, after a write to the file or directory `written`, None if not known."""
    store, staging = space.nearest_existing(context.store), context.staging
    if staging is not None:
        path = Path(written or "")
        in_store, in_staging = path.is_relative_to(store), path.is_relative_to(staging)
        if in_store and in_staging:
            # One lies in the other.
            in_staging = not store.is_relative_to(staging)
        elif not (in_store or in_staging):
            in_staging = space.free_disk(staging) <= space.free_disk(store)
        if in_staging:
            return cause("staging-full").finding(directory=staging)
    return cause("store-full").finding(directory=store)


def _describe_disconnected(mount: str) -> tuple[str, str]:
    """Message and hint for a file system that crckpt disconnected."""
    hint = f"mount it again (fusermount3 -u {shlex.quote(mount)} first), then try again"
    if not mount.startswith("/"):  # it was not mounted anywhere, or out of sight
        hint = "find the program that uses it, and end it; then try again"
    return f"the file system on {mount} did not answer, and crckpt disconnected it", hint


def limited_waits_of_dump(root: int) -> AbstractContextManager[None]:
    """During this block crckpt waits for no FUSE file system of the tree below `root` without limit.

    If the block fails then, the error names the file system. CRIU has a limit of its own: `crckpt.criu.engine`.
    """
    return _limited_waits(lambda: (os.getpid(),), lambda: fuse.abort_connections(proc.descendants(root)))


def limited_waits_of_restore(users: frozenset[int]) -> AbstractContextManager[None]:
    """During this block crckpt and its CRIU wait for no FUSE file system of these users without limit.

    If the block fails then, the error names the file system.
    """
    # CRIU and the processes that it makes descend from us.
    ours = partial(proc.descendants, os.getpid())
    return _limited_waits(ours, lambda: fuse.abort_connections(ours(), users))


@contextmanager
def _limited_waits(waiting: Callable[[], Iterable[int]], abort: Callable[[], tuple[str, ...]]) -> Iterator[None]:
    aborted: list[str] = []
    try:
        # At its end it knows what it has aborted: the block may fail before the call that aborts returns.
        with fuse.limited_answers(waiting, abort) as aborted:
            yield
    except (CrckptError, Interrupted) as error:
        if not aborted:
            raise
        said, hint = _describe_disconnected(aborted[0])
        if isinstance(error, Refusal):  # its findings do not say that, and a command may fill them and raise them again
            raise PreflightRefused(f"{said}: {error.what}", hint=hint) from error
        raise error.reword(f"{said}: {error.what}", hint=hint) from error


@contextmanager
def nothing_begun_reported(context: Context) -> Iterator[None]:
    """If the block, which does not touch the tree, is interrupted or gets a system error: say that the tree runs."""
    try:
        yield
    except (Interrupted, OSError) as error:
        raise to_dump_error(error, "the dump", context).reword(state=UNCHANGED) from error


@contextmanager
def full_disk_reported(target: Path, hint: str) -> Iterator[None]:
    """If the disk is full that the block writes `target` to, outside of the store, raise UsageError with this hint."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UsageError(f"{_FULL[error.errno]} for {target}; crckpt removed it", hint=hint) from error


def criu_failure(
    result: CriuResult,
    kind: type[Failure],
    what: str,
    find_place: Callable[[Explanation], FailureLocation | None],
    state: str = "",
    known: Sequence[Finding] = (),
    values: Mapping[str, str] = {},
) -> Failure:
    """The error for a CRIU that failed: `what` failed, in words, and `state` is how things stand now.

    `find_place` names where CRIU failed (`ops.failure_locations`). `known` are findings of crckpt: for some causes
    they are more exact than the log. `values` are more of the finding's, as `Finding` has them.
    """
    # Rarely needed and slow to import: 34 ms for the patterns and the catalogue.
    from crckpt.criu.explain import explain

    explanation = explain(result.log)
    # What crckpt knows for certain comes before what the log suggests.
    if result.waited_for:
        said, hint = _describe_disconnected(result.waited_for[0])
        return kind(f"{what} failed: {said}", state=state, hint=hint, causes=explanation.lines)
    # What is only likely explains no CRIU that was killed: its log ends anywhere.
    is_guess = explanation.finding is not None and not explanation.finding.sure
    if explanation.finding and not (is_guess and result.status < 0):
        keys = _NAMED_EXACTLY.get(explanation.finding.key, ())
        exact = next((found for found in known if found.key in keys), None)
        finding = (exact or explanation.finding).fill(**values)
        # CRIU does not log which capability the failed call needed: name all that could be missing.
        if lacking := [name for number, name in _CAPABILITIES.items() if number not in effective_capabilities()]:
            finding = finding.fill(lacking=f"; crckpt runs without {', '.join(lacking)}")
        # Findings of crckpt name the place themselves.
        place = find_place(explanation) if exact is None else None
        where = f" ({place})" if place else ""
        message = f"{what} failed: {finding.what}{where}"
        said_lines = len(explanation.lines) if finding.says_all else 0
        return kind(message, state=state, hint=finding.remedy, causes=explanation.lines, causes_said=said_lines)
    hint, said_lines = "check this host: crckpt doctor", 0
    if result.is_late:
        said = "CRIU worked for much longer than a program of this size needs, and crckpt ended it"
        hint = "see what the program has very much of: descriptors, files watched by an epoll, maps, sockets"
    elif result.hung:
        said = f"CRIU made no progress for {QUIET_S:g} s, and crckpt ended it"
        hint = f"{hint}; if a process of the tree was killed during that time, try again"
    elif explanation.lines and result.status >= 0:
        said, said_lines = explanation.lines[0], 1
    else:
        how = f"status {result.status}" if result.status >= 0 else f"signal {-result.status}"
        said = f"CRIU ended with {how} and printed no error"
    return kind(f"{what} failed: {said}", state=state, hint=hint, causes=explanation.lines, causes_said=said_lines)
