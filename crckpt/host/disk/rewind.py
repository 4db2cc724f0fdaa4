"""Truncate a program's log to an earlier size and keep the later lines; give a file a name again that it lost.

The owner of the directory may replace the file or the directory at any moment. So each is opened once, without
following links, and all work uses these descriptors, with the rights of the file's owner.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import RestoreFailed
from crckpt.host.disk.files import PRIVATE_FILE, name_with_ending, resize, sync, write
from crckpt.host.disk.space import free_disk
from crckpt.host.opened import opened
from crckpt.host.process.signals import interrupts_deferred
from crckpt.host.steps import step
from crckpt.host.syscalls.openat2 import file_rights_of, open_without_links

_COPIED_AT_ONCE: Final = 1 << 20
_MOST_NAMES: Final = 1000
_SECTOR: Final = 512
_EXCHANGED: Final = frozenset({errno.ELOOP, errno.EXDEV, errno.ENOENT, errno.ENOTDIR, errno.ENXIO})


@contextmanager
def restored_on_failure(path: Path, size: int, kept: str) -> Iterator[Path]:
    """Truncate the file `path` to `size` bytes, and keep the later lines in a new file next to it.

    The new file is named `kept`, or the first of `kept.2`, `kept.3` ... that is free; it belongs to the owner of
    `path`. Gives its path. If the block fails, the file gets its content back, and the new file is removed.

    Raises RestoreFailed if `path` is no regular file, is reached through a link, or is shorter than `size`: that is
    not the file that was meant. Raises OSError if the owner of `path` may not write to it or next to it.
    """
    with ExitStack() as stack:
        directory, file = _open(path, size, stack)
        name, tail = _make_beside(directory, file, kept, stack)
        is_cut, kept_bytes = False, 0
        try:
            _check_room(file, size, tail, path)
            _copy(file, size, tail, 0, "tail")
            step("tail.sync-directory", directory)
            os.fsync(directory)
            # Copy once what other programs have appended since, and do not wait for more.
            _copy(file, size + os.fstat(tail).st_size, tail, os.fstat(tail).st_size, "tail")
            kept_bytes = os.fstat(tail).st_size
            resize(file, size, "rewound")
            is_cut = True
            yield path.with_name(name)
        except BaseException:
            with interrupts_deferred():
                # An interruption may come when the file is cut, and before `is_cut` says so.
                if is_cut or os.fstat(file).st_size == size:
                    _copy(tail, 0, file, size, "rewound", kept_bytes or None)
                _remove(directory, name, tail)
            raise


def _open(path: Path, size: int, stack: ExitStack) -> tuple[int, int]:
    """Descriptors of the directory, and of the file in it, which is open to be read and appended to."""
    try:
        directory = open_without_links(str(path.parent), os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, directory)
        found = open_without_links(path.name, os.O_PATH, directory=directory)
        stack.callback(os.close, found)
        step("rewound.open", path)
        status = os.fstat(found)
        with file_rights_of(status.st_uid, status.st_gid):
            # A FIFO or a device that replaced it must not block or act.
            flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
            file = open_without_links(path.name, flags, directory=directory)
        stack.callback(os.close, file)
    except OSError as error:
        if error.errno in _EXCHANGED:
            raise _exchange_error(path) from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    now = os.fstat(file)
    is_same = (now.st_dev, now.st_ino, now.st_uid) == (status.st_dev, status.st_ino, status.st_uid)
    if not is_same or not stat.S_ISREG(now.st_mode) or now.st_size < size:
        raise _exchange_error(path)
    return directory, file


def _exchange_error(path: Path) -> RestoreFailed:
    return RestoreFailed(
        f"somebody replaced or truncated {path} a moment ago",
        hint=f"check it, then try again: ls -l {shlex.quote(str(path))}",
    )


def _make_beside(directory: int, file: int, wanted: str, stack: ExitStack) -> tuple[str, int]:
    """Make a file in `directory` to read and append to, owned as `file`; return its name and a descriptor."""
    # Make it with the rights of the owner. In a directory of root's that is not world-writable, such as /var/log, use
    # ours: there the owner often may write only to the log.
    above, owner = os.fstat(directory), os.fstat(file)
    is_roots = above.st_uid == os.geteuid() and not above.st_mode & stat.S_IWOTH
    uid, gid = (os.geteuid(), os.getegid()) if is_roots else (owner.st_uid, owner.st_gid)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
    names = (wanted, *(name_with_ending(wanted, f".{number}") for number in range(2, _MOST_NAMES)))
    step("tail.create", wanted)
    with file_rights_of(uid, gid):
        for name in names:
            with suppress(FileExistsError):
                tail = open_without_links(name, flags, PRIVATE_FILE, directory=directory)
                break
        else:
            raise RestoreFailed(
                f"crckpt has no free name for what it cuts off a file: {names[0]} and {len(names) - 1} more exist",
                hint=f"remove {wanted}* if you do not need them, then try again",
            )
    stack.callback(os.close, tail)
    try:
        os.fchmod(tail, PRIVATE_FILE)
        if os.fstat(tail).st_uid != owner.st_uid:
            os.fchown(tail, owner.st_uid, owner.st_gid)
    except BaseException:
        _remove(directory, name, tail)
        raise
    return name, tail


def _remove(directory: int, name: str, tail: int) -> None:
    """Remove the new file, if its name is still its own."""
    with suppress(FileNotFoundError):
        found, ours = os.stat(name, dir_fd=directory, follow_symlinks=False), os.fstat(tail)
        if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
            step("tail.unlink", name)
            os.unlink(name, dir_fd=directory)


def _check_room(file: int, size: int, tail: int, path: Path) -> None:
    """Raise OSError if the later lines do not fit on the disk, apart from space that is reserved for root."""
    status = os.fstat(file)
    # Holes are copied as holes, so the copy takes no more than the file has on the disk.
    if min(status.st_size - size, status.st_blocks * _SECTOR) > free_disk(tail):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _copy(source: int, start: int, target: int, at: int, what: str, most: int | None = None) -> None:
    """Append what `source` has from `start` on, as it is now, to `target`, which has `at` bytes; durably.

    At most `most` bytes, and none that are appended from now on.
    """
    # Holes stay holes: a log may declare terabytes.
    end = os.fstat(source).st_size if most is None else min(os.fstat(source).st_size, start + most)
    shift = at - start
    while start < end:
        try:
            start = os.lseek(source, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            start = end  # a hole until the end
        # Both files are open for appending, so only a change of the size can make a hole.
        if start > end or start + shift > os.fstat(target).st_size:
            resize(target, min(start, end) + shift, what)
        if start >= end:
            break
        hole = os.lseek(source, start, os.SEEK_HOLE)
        content = os.pread(source, min(_COPIED_AT_ONCE, end - start, hole - start), start)
        if not content:
            break
        write(target, content, what)
        start += len(content)
    sync(target, what)


@contextmanager
def linked_again(path: Path, name: str, inode: int, owner: int) -> Iterator[None]:
    """Give the file `name`, in the directory of `path`, that name, too. If the block fails, take it away again.

    Raises RestoreFailed if a symbolic link is in the way, or if the file is not that inode of this user any more.
    """
    try:
        with (
            opened(open_without_links(str(path.parent), os.O_PATH | os.O_DIRECTORY)) as directory,
            opened(open_without_links(name, os.O_PATH, directory=directory)) as found,
        ):
            status = os.fstat(found)
            if (status.st_ino, status.st_uid) != (inode, owner):
                raise FileNotFoundError(errno.ENOENT, "somebody has replaced the file")
            step("other-name.link", path)
            os.link(f"/proc/self/fd/{found}", path.name, dst_dir_fd=directory, follow_symlinks=True)
    except OSError as error:
        raise RestoreFailed(f"{path} cannot be linked to {name}: {error.strerror}", hint="try again") from error
    try:
        yield
    except BaseException:
        step("other-name.unlink", path)
        # A tree may have more such files than we may have descriptors: the directory was closed.
        with suppress(OSError), opened(open_without_links(str(path.parent), os.O_PATH | os.O_DIRECTORY)) as directory:
            if os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_ino == inode:
                os.unlink(path.name, dir_fd=directory)
        raise
