"""Look for the files of another host's tree on this host.

The paths come from the other host: see `crckpt.host.disk.untrusted_path`. A file system that does not answer cannot be
made to: a thread waits for it, and this module only for the thread. No file system is disconnected for a question.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from crckpt.errors import error_text
from crckpt.host.disk.checked_files import regular_opened
from crckpt.host.disk.digests import read_build_id, read_digest
from crckpt.host.disk.untrusted_path import HeldFile, find_automounts, held
from crckpt.host.disk.users import find_user_name
from crckpt.host.process.signals import start_thread
from crckpt.host.steps import limit
from crckpt.migrate.preflight.asked_files import (
    LARGEST_READ,
    MOST_READ,
    find_local_locks,
    find_shared_file_systems,
    limit_time,
)
from crckpt.migrate.preflight.judge_files import LocalFile
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.model import utc_datetime
from crckpt.preflight.restore.host import FileState

ANSWERS_WITHIN_S: Final = limit("CRCKPT_FILES_ANSWER_S", 10)
"""A file system that does not answer for this many seconds counts as silent."""

_LOOK_S: Final = 0.1


def look_for_files(
    asked: Sequence[AskedFile], within_s: float = ANSWERS_WITHIN_S, *, shares_kernel: bool = False
) -> dict[int, LocalFile]:
    """Look for files, waiting for silent file systems; `shares_kernel` with the host that asks. Ids are the keys."""
    look = _Look(asked, shares_kernel=shares_kernel)
    start_thread(look.run)
    waited, before = 0.0, -1
    while not look.is_done.wait(_LOOK_S):
        # Counts looks, not time: we may have been stopped.
        now = look.progress
        waited, before = (0.0, now) if now != before else (waited + _LOOK_S, now)
        if waited > within_s:
            return look.give_up()
    return look.results


class _Look:
    def __init__(self, asked: Sequence[AskedFile], *, shares_kernel: bool) -> None:
        self._asked = asked
        self._shares_kernel = shares_kernel
        self._shared = find_shared_file_systems()
        self._local_locks = find_local_locks()
        self._automounts = find_automounts()
        self._left = MOST_READ
        self._current: AskedFile | None = None
        self.results: dict[int, LocalFile] = {}
        self.progress = 0
        self.is_done = threading.Event()

    def run(self) -> None:
        try:
            for file in self._asked:
                self._current = file
                self.results[file.id] = self._look_at(file)
                self._count(1)
        finally:
            self.is_done.set()

    def give_up(self) -> dict[int, LocalFile]:
        """Return what is known, without the file that the thread still waits for, and those after it."""
        known, current = dict(self.results), self._current
        for file in self._asked:
            if file.id not in known:
                known[file.id] = LocalFile(problem="silent" if file is current else "unasked")
        return known

    def _count(self, more: int) -> None:
        self.progress += more

    def _look_at(self, file: AskedFile) -> LocalFile:
        try:
            # CRIU opens a symbolic link that the tree has open itself (O_PATH | O_NOFOLLOW) with these flags.
            with held(file.name, self._automounts, follow=not file.flags & os.O_NOFOLLOW) as here:
                if here.is_unmounted:
                    return LocalFile(problem="unmounted")
                return self._describe(file, here)
        except (FileNotFoundError, NotADirectoryError):
            return LocalFile()
        except (OSError, ValueError) as error:
            return LocalFile(problem="refused", why=error_text(error))

    def _describe(self, file: AskedFile, here: HeldFile) -> LocalFile:
        status = here.status
        is_regular = stat.S_ISREG(status.st_mode)
        build_id = b""
        with suppress(OSError):
            build_id = (read_build_id(here.link) if file.build_id and is_regular else None) or b""
        state = FileState(
            size=status.st_size,
            mode=status.st_mode,
            written=utc_datetime(status.st_mtime),
            changed=utc_datetime(status.st_ctime),
            build_id=build_id.hex(),
            owner=status.st_uid,
            is_redirected=here.is_redirected,
        )
        return LocalFile(
            state=state,
            digest=self._digest(file, here) if is_regular else "",
            modified=limit_time(status.st_mtime_ns),
            gid=status.st_gid,
            inode=status.st_ino,
            is_same=self._shares_kernel and (status.st_dev, status.st_ino) == (file.device, file.inode),
            shared_by=self._shared.get(status.st_dev, ""),
            owners={uid: find_user_name(uid) for uid in here.owners},
            local_locks=self._local_locks.get(status.st_dev, frozenset()),
        )

    def _digest(self, file: AskedFile, here: HeldFile) -> str:
        """Read the content only where it decides: the other host has read it, and the size is the same."""
        if not file.digest or here.status.st_size != file.size or file.size > min(LARGEST_READ, self._left):
            return ""
        self._left -= file.size
        with suppress(OSError), regular_opened(here.link) as descriptor:
            return read_digest(descriptor, file.size, self._count) if descriptor is not None else ""
        return ""
