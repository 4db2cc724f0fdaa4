"""Contents of files that are being received: in the order in which they were asked for, each checked by its digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Final

from crckpt.errors import IntegrityError
from crckpt.host.disk import placed_files
from crckpt.migrate.transfer.sent_files import SentFile
from crckpt.migrate.wire.frames import BadFrame
from crckpt.migrate.wire.messages import PackMessage

CHANNEL: Final = 0
"""The channel on which all contents come."""


class IncomingFiles:
    """Contents that come one after the other. `begin` and `add` are called by the thread that reads the connection."""

    def __init__(self, files: Sequence[SentFile], open_file: Callable[[int], int], word: str) -> None:
        """`open_file` returns a descriptor to write the file of that number to. `word` names one in messages."""
        self._files = files
        self._open_file = open_file
        self._word = word
        self._descriptor = -1
        self._begun = 0
        self._current = hashlib.sha256()
        self._received = 0

    @property
    def missing(self) -> SentFile | None:
        """The first file that has not begun to come; None if all have."""
        return self._files[self._begun] if self._begun < len(self._files) else None

    def begin(self, pack: PackMessage) -> None:
        """See `PackReceiver`."""
        self.check_last()
        file = self.missing
        if file is None or (pack.channel, pack.digest, pack.size) != (CHANNEL, file.digest, file.size):
            raise BadFrame(f"{self._word} {pack.digest[:12]}, which was not asked for now")
        self._descriptor = self._open_file(self._begun)
        self._begun += 1
        self._current, self._received = hashlib.sha256(), 0

    def add(self, channel: int, content: memoryview) -> None:
        """See `PackReceiver`."""
        if channel != CHANNEL or not self._begun:
            raise BadFrame(f"data on channel {channel}, where no {self._word} has begun")
        file = self._files[self._begun - 1]
        if self._received + len(content) > file.size:
            raise BadFrame(f"more data of {self._word} {file.digest[:12]} than it has bytes")
        placed_files.write_content(self._descriptor, content)
        self._current.update(content)
        self._received += len(content)

    def check_last(self) -> None:
        """Raise IntegrityError if the last content did not come whole."""
        if self._begun and self._current.hexdigest() != (file := self._files[self._begun - 1]).digest:
            raise IntegrityError(f"{os.fsdecode(file.path)} was changed on the way, or while it was read")
