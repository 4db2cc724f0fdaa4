"""The root of a live tree, and the log of the CRIU that restores it, named so that another process can find them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host.proc.fd import open_flags, read_targets
from crckpt.host.proc.process import Identity, Process, read_process
from crckpt.host.proc.procfs import DELETED, boot_id
from crckpt.host.proc.status import effective_capabilities, namespace
from crckpt.host.proc.tree import working_directory
from crckpt.model import Count, Pid

_CAP_SYS_PTRACE: Final = 19  # linux/capability.h


class CriuLog(Struct, frozen=True):
    """A log, and the start time of its CRIU: no process of the tree is older.

    `device` and `inode` are the file's: any user can have another file at `path`, in mounts of their own, and can pass
    a descriptor of it to any process.
    """

    path: str
    device: Count
    inode: Count
    began: Count

    def is_written_by(self, pid: int) -> bool:
        """Return whether a process of the tree has it open for writing, even if it was removed since."""
        with suppress(OSError):
            for fd, target in read_targets(pid):
                is_meant = target.removesuffix(DELETED) == self.path
                if is_meant and open_flags(pid, fd) & os.O_ACCMODE != os.O_RDONLY:
                    process, found = read_process(pid), os.stat(f"/proc/{pid}/fd/{fd}")
                    is_same = (found.st_dev, found.st_ino) == (self.device, self.inode)
                    if is_same and process is not None and process.start >= self.began:
                        return True
        return False


def identify_log(path: str, began: int) -> CriuLog | None:
    """Identify the log at `path` of a CRIU that began at `began`; None if there is none."""
    with suppress(OSError):
        found = os.lstat(path)
        return CriuLog(path, found.st_dev, found.st_ino, began)
    return None


class LiveRoot(Identity, frozen=True):
    """The root of a live tree.

    `builder` is the CRIU that has built the tree, and ends once it has let it run, and `builder_start` its start time;
    0 for a tree that was not built. `log` is the builder's log, which every process of the tree has open until it runs;
    None if that is not known.
    """

    builder: Pid = 0
    builder_start: Count = 0
    log: CriuLog | None = None

    def is_held(self) -> bool:
        """Return whether CRIU holds it: within moments it lets the tree run, or ends it."""
        found = self.find()
        # While CRIU waits in the hold of a restore, it traces nothing.
        builder = Identity(self.boot_id, self.builder, self.builder_start) if self.builder else None
        return found is not None and (_is_criu(found.tracer) or (builder is not None and builder.find() is not None))

    def is_unfinished(self) -> bool:
        """Return whether CRIU was killed before it let the tree run: its processes wait for ever, and never run."""
        if self.log is None or self.is_held():
            return False
        return self.find() is not None and self.log.is_written_by(self.pid)


def identify_live_root(root: Process, builder: int = 0) -> LiveRoot:
    """Identify the root of a live tree of our PID namespace; in a restore `builder` is the PID of the CRIU."""
    found, log = read_process(builder) if builder else None, None
    if found is not None:
        # The file in the directory of CRIU that it and the root write.
        directory = working_directory(builder)
        with suppress(OSError):
            for fd, target in read_targets(builder):
                if target.rpartition("/")[0] == directory:
                    status = os.stat(f"/proc/{builder}/fd/{fd}")
                    each = CriuLog(target, status.st_dev, status.st_ino, found.start)
                    if each.is_written_by(builder) and each.is_written_by(root.pid):
                        log = each
                        break
    return LiveRoot(
        boot_id(),
        root.pid,
        root.start,
        namespace("self", "pid"),
        builder,
        found.start if found is not None else 0,
        log,
    )


def _is_criu(tracer: int) -> bool:
    """Return whether a tracer may be CRIU; 0 is none. Any user can trace their own program for as long as they like."""
    process = read_process(tracer) if tracer else None
    if process is None:
        return False
    # The real user is the one who has started a set-user-ID program.
    if process.uids[0] in (0, os.getuid()) or _CAP_SYS_PTRACE not in effective_capabilities():
        return True
    # CRIU may run as the program's user, with our capabilities. In a user namespace everybody can have them all.
    with suppress(OSError):
        is_in_ours = namespace(tracer, "user") == namespace("self", "user")
        is_set_user_id = process.uids[0] != process.uids[1]
        return is_in_ours and not is_set_user_id and _CAP_SYS_PTRACE in effective_capabilities(tracer)
    return False
