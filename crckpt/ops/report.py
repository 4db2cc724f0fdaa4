"""Make an archive for a bug report. If a part cannot be made, the archive names it and says why."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import stat
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from crckpt.criu.explain import explain
from crckpt.errors import CrckptError, NoSuchCheckpoint, UsageError, error_text
from crckpt.host.disk.checked_files import is_directory, open_checked
from crckpt.host.disk.files import created, write
from crckpt.host.disk.log_excerpt import read_stream_ends
from crckpt.host.usage import find_criu_processes, read_host_usage
from crckpt.ops.context import Context
from crckpt.ops.doctor import doctor
from crckpt.ops.failures import full_disk_reported
from crckpt.ops.inspect.explain import describe
from crckpt.ops.inspect.show import show
from crckpt.ops.list import list_checkpoints
from crckpt.ops.version import version
from crckpt.store.backend.directory import check_access
from crckpt.store.layout import SCRATCH
from crckpt.store.transaction import find_dead_transactions

_TOP: Final = "crckpt-report"
_ANOTHER_FILE: Final = "name another file: --output FILE"
# Of a longer log the end is kept: the reason of a failure is there.
_LOG_BYTES: Final = 16 << 20
_LOGS: Final = 3
_HIDDEN: Final = "(host name)"
# The first line of a log of CRIU, with the host name of uname(2) (criu/log.c: print_versions).
_RUNNING_ON: Final = re.compile(r"^((?:\([\d.]+\) )?Running on )\S+", re.MULTILINE)

# Names in the archive, each with text or with a value that becomes JSON.
_Files = Iterator[tuple[str, object]]


class ReportRequest(Struct, frozen=True):
    """The user's request for a report.

    `read_log` returns a log of CRIU. `with_secrets` includes command lines, notes and host names.
    """

    output: Path
    ref: str | None = None
    read_log: Callable[[], bytes] | None = None
    with_secrets: bool = False


class Member(Struct, frozen=True):
    """A file in the archive, with its size in bytes."""

    name: str
    bytes: int


class FailedPart(Struct, frozen=True):
    """A part that could not be made, and why."""

    part: str
    why: str


class Report(Struct, frozen=True):
    """The archive, its size in bytes, its files, and the parts that could not be made."""

    archive: Path
    bytes: int
    with_secrets: bool
    members: tuple[Member, ...]
    failed: tuple[FailedPart, ...]


def report(context: Context, request: ReportRequest) -> Report:
    """Write the archive (tar.gz, 0600).

    Raises NoSuchCheckpoint or UsageError if the ref or the log does not exist, UsageError if the file cannot be made.
    """
    # First of all, so that the user need not wait for the probes to learn that the file cannot be made.
    with full_disk_reported(request.output, _ANOTHER_FILE), ExitStack() as undo:
        try:
            descriptor = undo.enter_context(created(request.output, "report"))
        except FileExistsError:
            raise UsageError(f"{request.output} exists already", hint=_ANOTHER_FILE) from None
        except OSError as error:
            raise UsageError(f"cannot write {request.output}: {error.strerror}", hint=_ANOTHER_FILE) from error
        found, failed = _collect(_parts(context, request))
        about = {"with_secrets": request.with_secrets, "failed": [msgspec.to_builtins(one) for one in failed]}
        # Hide it in everything at the end: a host name may be in any path, log or message.
        hide = (lambda value: value) if request.with_secrets else _hider(platform.node())
        parts = ((name, hide(value)) for name, value in (("report.json", about), *found))
        contents = {
            name: (value if isinstance(value, str) else json.dumps(value, indent=1) + "\n").encode()
            for name, value in parts
        }
        packed, now = io.BytesIO(), int(time.time())
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, content in contents.items():
                # Without owner: the reader need not know who made it.
                entry = tarfile.TarInfo(f"{_TOP}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, now
                archive.addfile(entry, io.BytesIO(content))
        write(descriptor, packed.getvalue(), "report")
    members = tuple(Member(name, len(content)) for name, content in contents.items())
    return Report(request.output, len(packed.getvalue()), request.with_secrets, members, failed)


def _parts(context: Context, request: ReportRequest) -> Iterator[tuple[str, Callable[[], _Files]]]:
    """Yield the parts of this report, in the order of the archive: names, and functions that make them."""
    ref, read_log = request.ref, request.read_log
    # First, so that the user need not wait for the probes to learn that it does not exist.
    if ref is not None:
        yield "manifest", lambda: _manifest(context, ref, with_secrets=request.with_secrets)
        yield "contents", lambda: _contents(context, ref)
        if request.with_secrets:
            yield "command lines", lambda: _command_lines(context, ref)
    if read_log is not None:
        yield "log", lambda: _log(read_log())
    yield "versions", _versions
    yield "host", lambda: _host(context)
    yield "configuration", lambda: _configuration(context)
    yield "doctor", lambda: _doctor(context)
    yield "store", lambda: _store(context)
    yield "logs of interrupted commands", lambda: _left_logs(context)


def _collect(
    parts: Iterator[tuple[str, Callable[[], _Files]]],
) -> tuple[tuple[tuple[str, object], ...], tuple[FailedPart, ...]]:
    found: list[tuple[str, object]] = []
    failed: list[FailedPart] = []
    for part, make in parts:
        try:
            found.extend(make())
        except (NoSuchCheckpoint, UsageError):  # the user must correct this: an archive would be useless
            raise
        except (CrckptError, OSError) as error:
            failed.append(FailedPart(part, error_text(error)))
        except MemoryError:
            failed.append(FailedPart(part, "the host has too little memory"))
        except Exception as error:  # users make a report when something does not work
            # Not its message, which may quote secrets.
            frames = traceback.extract_tb(error.__traceback__)
            calls = ", ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in frames)
            failed.append(FailedPart(part, f"this is a bug in crckpt: {type(error).__name__} in {calls}"))
    return tuple(found), tuple(failed)


def _versions() -> _Files:
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        distribution = None
    versions = {
        "crckpt": version().splitlines(),
        "python": platform.python_version(),
        "kernel": f"{platform.release()} {platform.version()}",
        "machine": platform.machine(),
        "distribution": distribution,
    }
    yield "versions.json", versions


def _host(context: Context) -> _Files:
    directories = (context.store, *(() if context.staging is None else (context.staging,)))
    used = {**asdict(read_host_usage(directories)), "processes": find_criu_processes()}
    yield "host.json", msgspec.to_builtins(used)


def _configuration(context: Context) -> _Files:
    named = ("store", "criu_option", "criu_configured", "staging")
    paths = {name: None if (path := getattr(context, name)) is None else str(path) for name in named}
    yield "configuration.json", {**paths, "compress": context.compress, "config_digest": context.config_digest}


def _doctor(context: Context) -> _Files:
    found = doctor(context)
    yield "doctor.json", {"able": found.able, "facts": msgspec.to_builtins(found.facts)}


def _store(context: Context) -> _Files:
    """Sums over the checkpoints; their names and contents are not in it."""
    listing = list_checkpoints(context, None)
    checkpoints = [entry.checkpoint for entry in listing.entries]
    sizes = ("raw_bytes", "new_bytes", "copied_bytes", "stored_bytes")
    sums = {
        "checkpoints": len(checkpoints),
        "jobs": len({checkpoint.job for checkpoint in checkpoints}),
        "tags": sum(len(entry.tags) for entry in listing.entries),
        **{name: sum(getattr(found.statistics, name) for found in checkpoints) for name in sizes},
    }
    yield "store.json", sums | msgspec.to_builtins({"damaged": listing.unreadable, "pending": listing.pending})


def _left_logs(context: Context) -> _Files:
    """The logs of dumps and restores that were killed: these stay until the next gc."""
    transactions = context.store / SCRATCH
    if not is_directory(transactions):
        return
    # Do not open the store: the logs are needed most if it is damaged.
    check_access(context.store)
    # Regular files only: a link may lead anywhere.
    logs = [
        (log.lstat().st_mtime, log)
        for path in find_dead_transactions(transactions)
        if is_directory(path)
        for name in ("dump.log", "restore.log")
        for log in path.rglob(name)
        if stat.S_ISREG(log.lstat().st_mode)
    ]
    for number, (_, log) in enumerate(sorted(logs, reverse=True)[:_LOGS], 1):
        descriptor = open_checked(log)
        try:
            content = read_stream_ends(descriptor)
        finally:
            os.close(descriptor)
        yield f"logs/{number}-{log.name}", _text(content)


def _manifest(context: Context, ref: str, *, with_secrets: bool) -> _Files:
    if not context.store.exists():
        raise NoSuchCheckpoint(
            f"there is no checkpoint {ref!r}", hint=f"{context.store} does not exist: use --store DIR"
        )
    repository = context.repository()
    with repository.shared():
        manifest = msgspec.to_builtins(repository.get(repository.resolve(ref, despite_damage=True)))
    if not with_secrets:
        del manifest["note"], manifest["host"]["hostname"]
    yield "checkpoint/manifest.json", manifest


def _contents(context: Context, ref: str) -> _Files:
    from crckpt.ops.inspect.sections import sections  # loads numpy, for which the host may have too little memory

    found = sections(context, ref, ("ps", "files", "sockets"))
    yield "checkpoint/processes.json", msgspec.to_builtins(found.ps)
    yield "checkpoint/files.json", msgspec.to_builtins(found.files)
    yield "checkpoint/sockets.json", msgspec.to_builtins(found.sockets)


def _command_lines(context: Context, ref: str) -> _Files:
    lines = {str(process.pid): process.command_line for process in show(context, ref).processes}
    yield "checkpoint/command-lines.json", lines


def _log(content: bytes) -> _Files:
    text = _text(content)
    yield "log/criu.log", text
    yield "log/explained.json", describe(explain(text))


def _text(content: bytes) -> str:
    return content[-_LOG_BYTES:].decode(errors="replace")


def _hider(host: str) -> Callable[[object], object]:
    """Make a function that hides this host's name, and the host name in the first line of a log."""
    # Only where it is a whole name. `localhost` is no secret.
    name = None if host in ("", "localhost") else re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")

    def hide(content: Any) -> object:
        if isinstance(content, str):
            text = _RUNNING_ON.sub(rf"\1{_HIDDEN}", content)
            return name.sub(_HIDDEN, text) if name else text
        if isinstance(content, Mapping):
            return {key: hide(value) for key, value in content.items()}
        if isinstance(content, list | tuple):
            return [hide(value) for value in content]
        return content

    return hide
