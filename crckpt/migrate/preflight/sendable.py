"""Which files a move may send (`--send-files`). Pure.

Only what the tree does not write is sent: regular files that it reads, maps or runs; and its working directories,
empty. Logs are sent empty: `send_tails` sends what they have gained since then, which is all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.migrate.preflight.questions import AskedFile, MoveQuestions

SPECIAL_BITS: Final = 0o7000
"""Of a file's mode: set-user-id, set-group-id, sticky."""

# What root has put there acts as soon as it exists (cron, systemd, ld.so.preload), and a user can open most of it.
_OF_THE_HOST: Final = (b"/etc/", b"/run/", b"/boot/", b"/lib/systemd/", b"/usr/lib/systemd/")


def find_sendable(
    questions: MoveQuestions, lacking: Iterable[AskedFile]
) -> tuple[tuple[AskedFile, ...], tuple[Finding, ...]]:
    """Find which of the lacking files may be sent, and say why the others may not."""
    directories = {process.cwd for process in questions.processes}
    sendable, findings = [], []
    for file in lacking:
        why = _find_refusal(file, is_working_directory=file.id in directories)
        if why:
            findings.append(cause("file-unsendable").finding(path=file.name, why=why))
        else:
            sendable.append(file)
    return tuple(sendable), tuple(findings)


def _find_refusal(file: AskedFile, *, is_working_directory: bool) -> str:
    """Say why a file may not be sent; empty if it may."""
    if file.shared_by:
        return f"it is on a network file system ({file.shared_by}), which the other host must mount"
    if stat.S_ISDIR(file.mode):
        return "" if is_working_directory else "the program has the directory open, and may read what is in it"
    if not stat.S_ISREG(file.mode):
        return "it is not a regular file"
    if file.is_written and not file.is_log:
        return "the program writes to it"
    if file.flags & os.O_PATH:
        # For this it needed no right to read it.
        return "the program has not opened it to read it (O_PATH)"
    if file.mode & SPECIAL_BITS:
        return "it gives its user's rights to those who run it (set-user-id)"
    if not file.uid and file.path.startswith(_OF_THE_HOST):
        return "it configures the host, so only you can decide whether the other host needs it"
    return "it is made by the kernel" if file.path.startswith((b"/proc/", b"/sys/", b"/dev/")) else ""
