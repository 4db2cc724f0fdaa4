"""The log of a terminal's output: a file of limited size, and the one before it."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.disk.own_files import is_own

_LOG_DIRECTORY: Final = Path("/var/log/crckpt")
# At this size the file becomes NAME.1, and a new one begins.
_MOST_BYTES: Final = 10 << 20
# A job may run more than once at a time: in PID namespaces, or from several stores.
_MOST_OF_A_JOB: Final = 100
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OutputLog:
    """The log of a terminal of a job. If the job has several terminals at a time, each has a file of its own."""

    def __init__(self, job: str, directory: Path = _LOG_DIRECTORY) -> None:
        """Open the log for appending, in a directory that is made if it is missing. Raises HostCannot."""
        self.most_bytes = _MOST_BYTES
        self._directory = self._file = -1
        try:
            with suppress(FileExistsError):
                directory.mkdir(mode=0o700, parents=True)
            self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if not is_own(os.fstat(self._directory), stat.S_IFDIR):
                raise PermissionError(1, "the directory belongs to another user, or others can write to it")
            for number in range(1, _MOST_OF_A_JOB):
                name = f"{job}.log" if number == 1 else f"{job}-{number}.log"
                self._file = self._open(name)
                if self._file >= 0:
                    self.path = directory / name
                    return
        except OSError as error:
            self.close()
            hint = f"check the directory: ls -ld {shlex.quote(str(directory))}; or name a file yourself: --tty FILE"
            raise HostCannot(f"cannot write the log of the terminal: {error.strerror}", hint=hint) from error
        self.close()
        raise HostCannot(
            f"all logs of job {job} in {directory} are in use",
            hint="see which programs have them: crckpt attach --list",
        )

    def write(self, output: bytes) -> None:
        """Append output. What cannot be written is lost: a full disk must not stop the program."""
        with suppress(OSError):
            if os.fstat(self._file).st_size + len(output) > self.most_bytes:
                self._rotate()
            os.write(self._file, output)

    def _rotate(self) -> None:
        """Begin a new file; go on with the old one where that is not possible."""
        name = self.path.name
        with suppress(OSError):
            os.rename(name, f"{name}.1", src_dir_fd=self._directory, dst_dir_fd=self._directory)
        with suppress(OSError):
            if (file := self._open(name)) >= 0:
                os.close(self._file)
                self._file = file

    def close(self) -> None:
        """Close the log."""
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._directory = -1

    def _open(self, name: str) -> int:
        """Open the file, and return its descriptor; -1 if another terminal writes to it. Raises OSError."""
        file = os.open(name, _FLAGS, 0o600, dir_fd=self._directory)
        try:
            found = os.fstat(file)
            if not is_own(found, stat.S_IFREG) or found.st_nlink > 1:
                raise PermissionError(1, f"{name} is not a file of its own, or others can write to it")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(file, 0o600)
        except OSError as error:
            os.close(file)
            if isinstance(error, BlockingIOError):
                return -1
            raise
        return file
