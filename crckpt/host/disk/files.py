"""Files and directories that survive a crash: write, fsync, rename, fsync the directory.

Every function that changes something takes `what`, a word that names its steps: see `steps`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.host.disk.checked_files import open_checked
from crckpt.host.opened import opened
from crckpt.host.process.signals import interrupts_deferred
from crckpt.host.steps import step

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600
# NAME_MAX (limits.h), in bytes.
_LONGEST_NAME = 255

# EUCLEAN: ext4, XFS and btrfs about damaged metadata. EBADMSG: ext4 and XFS about a wrong checksum.
LOST: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
"""Errors of a read when the disk, or a file system with checksums, has lost data."""


@contextmanager
def losses_ignored() -> Iterator[None]:
    """End the block, without an error, where the disk has lost data."""
    try:
        yield
    except OSError as error:
        if error.errno not in LOST:
            raise


def own_name() -> str:
    """A new name for a file of this process."""
    # A PID alone may be in use by a leftover: PIDs recur after a crash.
    return f"{os.getpid()}-{os.urandom(4).hex()}"


def name_with_ending(name: str, ending: str) -> str:
    """`name` with `ending`; `name` is cut where the two are too long for a file name."""
    while name and len(os.fsencode(name + ending)) > _LONGEST_NAME:
        name = name[:-1]
    return name + ending


def user_directory(variable: str, below: str) -> Path | None:
    """A directory of this user: the value of `variable` (XDG base directories), or `below` their home.

    None if they have no home, like a container's user without a name.
    """
    if named := os.environ.get(variable):
        return Path(named)
    with suppress(RuntimeError):
        return Path.home() / below
    return None


def make_private_directory(path: Path, what: str) -> None:
    """Create `path` durably with mode 0700, whatever the umask."""
    _make_private(path, what)
    sync_directory(path.parent, what)


def ensure_private_directory(path: Path, what: str) -> None:
    """Like `make_private_directory`, but it may exist already, or be made by another process now."""
    add_private_directory(path, what)
    # Sync it in any case: its maker may have died before the sync.
    sync_directory(path.parent, what)


def add_private_directory(path: Path, what: str) -> None:
    """Like `ensure_private_directory`, but durable only after the directory above it is synced."""
    with suppress(FileExistsError):
        _make_private(path, what)


def ensure_directories(path: Path, what: str) -> None:
    """Create `path` and missing directories above it, private and durably."""
    above = path
    while not above.exists():
        above = above.parent
    # Its maker may have died before the sync. A directory that we may not open was not made by us.
    with suppress(PermissionError):
        sync_directory(above.parent, what)
    for directory in reversed([path, *path.parents][: len(path.parts) - len(above.parts)]):
        step(f"{what}.mkdir", directory)
        directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
        sync_directory(directory.parent, what)


def sync_directory(path: Path, what: str) -> None:
    """Make the names in `path` durable (fsync of the directory)."""
    with opened(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        step(f"{what}.sync-directory", path)
        os.fsync(descriptor)


def open_private(path: Path, what: str) -> int:
    """Create `path` for writing with mode 0600, whatever the umask, and return its descriptor. Fails if it exists."""
    step(f"{what}.create", path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    os.fchmod(descriptor, PRIVATE_FILE)
    return descriptor


def open_lock(path: Path, what: str) -> int:
    """Open `path` to be locked; create it, empty, with mode 0600, if it is missing.

    Raises IntegrityError if it is a link, another user's, or no regular file.
    """
    step(f"{what}.create", path)
    with suppress(FileExistsError):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, PRIVATE_FILE)
        os.fchmod(descriptor, PRIVATE_FILE)
        return descriptor
    return open_checked(path, mode=os.O_RDWR)


def write(descriptor: int, content: bytes | memoryview, what: str) -> None:
    """Write all of `content` at the descriptor's position."""
    left = memoryview(content)
    while left:
        step(f"{what}.write", descriptor, left)
        left = left[os.write(descriptor, left) :]


def write_at(descriptor: int, content: bytes | memoryview, offset: int, what: str) -> None:
    """Write all of `content` at `offset`."""
    left = memoryview(content)
    while left:
        step(f"{what}.write-at", descriptor, left, offset)
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


def resize(file: int | Path, size: int, what: str) -> None:
    """Truncate a file, or extend it by a hole."""
    step(f"{what}.resize", file, size)
    os.truncate(file, size)


def sync(descriptor: int, what: str) -> None:
    """Make a file's content durable."""
    step(f"{what}.sync", descriptor)
    os.fsync(descriptor)


def sync_content(directory: Path, what: str) -> None:
    """Make the files in a directory and their names durable, but not the directory's own name."""
    for path in directory.iterdir():
        with opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            sync(descriptor, what)
    sync_directory(directory, what)


def rename(source: Path, target: Path, what: str) -> None:
    """Rename; durable only after the directories are synced."""
    step(f"{what}.rename", source, target)
    source.rename(target)


def remove(path: Path, what: str) -> None:
    """Remove a file; it may come back until the directory is synced. Raises FileNotFoundError if there is none."""
    step(f"{what}.unlink", path)
    path.unlink()


def remove_tree(path: Path, what: str) -> None:
    """Remove a file, or a directory and all that is in it. Links are removed, not followed.

    Raises FileNotFoundError if there is nothing, OSError.
    """
    # Works by descriptors; two suffice for any depth, because nested directories are moved up first.
    with opened(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
        top = _directory_in(above, path.name)
        if top is None:
            _unlink_in(above, path, what)
            return
        with opened(top):
            left = _remove_files(top, path, what)
            while left:
                name = left.pop()
                here = _directory_in(top, name)
                if here is None:  # it was replaced
                    _unlink_in(top, path / name, what)
                    continue
                with opened(here):
                    for inner in _remove_files(here, path / name, what):
                        moved = own_name()
                        step(f"{what}.rename", path / name / inner, path / moved)
                        os.rename(inner, moved, src_dir_fd=here, dst_dir_fd=top)
                        left.append(moved)
                _rmdir_in(top, path / name, what)
        _rmdir_in(above, path, what)


def write_new(path: Path, content: bytes, what: str) -> None:
    """Create `path` with mode 0600 and make its content durable; its name only after the directory is synced."""
    with opened(open_private(path, what)) as descriptor:
        write(descriptor, content, what)
        sync(descriptor, what)


def write_unsynced(path: Path, content: bytes, what: str) -> None:
    """Create `path` with mode 0600, for content that nobody needs after a crash."""
    with opened(open_private(path, what)) as descriptor:
        write_at(descriptor, content, 0, what)


def move_durably(source: Path, target: Path, what: str) -> None:
    """Rename a file or directory with durable content, and make its new name durable."""
    rename(source, target, what)
    sync_directory(target.parent, what)


def write_durably(path: Path, content: bytes, what: str) -> None:
    """Create or replace `path` so that after any crash it has either all of the old or all of the new content."""
    # In the same directory: rename(2) replaces a name only within one file system.
    temporary = path.with_name(name_with_ending(f".{path.name}", f".{own_name()}"))
    with removed_on_failure(temporary, what):
        write_new(temporary, content, what)
        rename(temporary, path, what)
    sync_directory(path.parent, what)


@contextmanager
def removed_on_failure(path: Path, what: str) -> Iterator[None]:
    """Remove `path`, a half-written temporary, if the block fails."""
    try:
        yield
    except BaseException:
        with suppress(FileNotFoundError):
            remove(path, what)
        raise


@contextmanager
def created(path: Path, what: str) -> Iterator[int]:
    """Create `path` for writing with mode 0600, and remove it if the block fails. Fails if it exists."""
    with ExitStack() as undo:
        # An interruption between the creation and the `try` that removes the file would leave it there.
        with interrupts_deferred():
            descriptor = open_private(path, what)
            undo.enter_context(removed_on_failure(path, what))
            undo.callback(os.close, descriptor)
        yield descriptor


def _make_private(path: Path, what: str) -> None:
    step(f"{what}.mkdir", path)
    path.mkdir(mode=PRIVATE_DIRECTORY)
    path.chmod(PRIVATE_DIRECTORY)  # the umask removes bits: 0777 would lock us out of our own directory


def _directory_in(above: int, name: str) -> int | None:
    """A descriptor of the directory `name`; None if it is a link or no directory."""
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _remove_files(directory: int, path: Path, what: str) -> list[str]:
    """Remove all but directories; return the names of these."""
    # Read all names before removing any: what readdir(3) returns of a directory that changes is unspecified.
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, _ in filter(lambda entry: not entry[1], found):
        _unlink_in(directory, path / name, what)
    return [name for name, is_directory in found if is_directory]


def _unlink_in(above: int, path: Path, what: str) -> None:
    step(f"{what}.unlink", path)
    os.unlink(path.name, dir_fd=above)


def _rmdir_in(above: int, path: Path, what: str) -> None:
    step(f"{what}.rmdir", path)
    os.rmdir(path.name, dir_fd=above)


def is_named(path: Path) -> bool:
    """Return whether there is such a name, even if the disk has lost its file."""
    with losses_ignored():
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def status_of(path: str, *, follow: bool = True) -> os.stat_result | None:
    """stat(2) of a file, or of a symbolic link itself; None if it is missing or cannot be reached."""
    try:
        return Path(path).stat(follow_symlinks=follow)
    except OSError:
        return None
