"""The questions of a move's source about the destination: what the live tree needs there. Pure.

They travel as msgpack. The destination trusts nothing: the types limit every number, length and count.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import HostCannot, IntegrityError
from crckpt.images.other_files import Pipe
from crckpt.images.processes import FileLock
from crckpt.images.sockets import InetSocket, Socket, UnixSocket
from crckpt.migrate.wire.messages import Addresses, decode_content, encode
from crckpt.model import MEBIBYTE, Count, Host, JobName, Pid
from crckpt.preflight.attribute_record import AttributeRecord

MOST_BYTES: Final = 32 * MEBIBYTE
"""The size of encoded questions: enough for about 200,000 files and descriptors."""

MOST_FILES: Final = 1 << 17
_MOST_ENTRIES: Final = 1 << 20

# PATH_MAX. Bytes: a name may be no valid text.
FilePath = Annotated[bytes, Meta(min_length=1, max_length=4096)]
Text = Annotated[str, Meta(max_length=1024)]
Identifier = Annotated[int, Meta(ge=0, lt=1 << 32)]
Nanoseconds = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{0,256}\Z")]
TerminalKind = Literal["pty", "console", "virtual console", "current", "serial"]


class AskedFile(Struct, frozen=True):
    """A file with a path that the tree uses.

    - `flags`: of open(2); 0 for mappings, programs and directories
    - `position`: of the descriptor that is furthest
    - `build_id`, `digest`: hexadecimal. Only a program or library has the first. Empty `digest`: the content was not
      read
    - `modified`, `changed`: the times of its last changes, of its content and of anything, in nanoseconds since 1970.
      `changed` is 0 if that was just now: a later change may have the same time
    - `inode`, `device`: which file it is on the source
    - `is_written`: the tree can change its content; `is_mapped`: through a map, which may leave the times as they are
    - `is_executed`: it is a program or library that the tree runs
    - `removed`: its name is gone; `linked` if it has other names
    - `shared_by`: the kind of the network file system that it is on; empty for a local one
    """

    id: Count
    path: FilePath
    mode: Identifier
    size: Count = 0
    flags: Count = 0
    position: Count = 0
    build_id: Hex = ""
    digest: Hex = ""
    modified: Nanoseconds = 0
    changed: Nanoseconds = 0
    uid: Identifier = 0
    gid: Identifier = 0
    inode: Count = 0
    device: Count = 0
    is_written: bool = False
    is_mapped: bool = False
    is_executed: bool = False
    removed: Literal["", "gone", "linked"] = ""
    shared_by: Text = ""

    @property
    def name(self) -> str:
        """Its path as Python has it."""
        return os.fsdecode(self.path)

    @property
    def is_log(self) -> bool:
        """Whether the tree only appends to it, on a file system of its host."""
        is_appended = self.flags & os.O_ACCMODE == os.O_WRONLY and bool(self.flags & os.O_APPEND)
        return is_appended and stat.S_ISREG(self.mode) and not self.removed and not self.shared_by


class AskedTerminal(Struct, frozen=True):
    """An open terminal.

    `index`: the N of /dev/pts/N. `session`: the leader of its session, 0 if outside the tree. `file`: the id of the
    file with its path; None of a /dev/pts/N.
    """

    id: Count
    path: FilePath
    kind: TerminalKind
    index: Pid | None = None
    is_master: bool = False
    is_hung_up: bool = False
    session: Pid = 0
    flags: Count = 0
    file: Count | None = None


class AskedProcess(Struct, frozen=True):
    """A process. Ids are those of its own PID namespace; groups and sessions outside of that are 0.

    - `descriptors`: (number, id of the file, socket, terminal or pipe)
    - `mapped`: ids of files
    - `profile`: of AppArmor or SELinux
    - `namespaces`: kind and inode
    """

    pid: Pid
    ppid: Pid
    pgid: Pid
    sid: Pid
    comm: Text
    state: Literal["alive", "stopped", "zombie"]
    threads: Annotated[tuple[Pid, ...], Meta(min_length=1, max_length=_MOST_ENTRIES)]
    uid: Identifier = 0
    euid: Identifier = 0
    gid: Identifier = 0
    egid: Identifier = 0
    groups: Annotated[tuple[Identifier, ...], Meta(max_length=1 << 16)] = ()
    has_seccomp_filter: bool = False
    has_shadow_stack: bool = False
    no_new_privs: bool = False
    profile: Text = ""
    namespaces: Annotated[tuple[tuple[Text, Count], ...], Meta(max_length=64)] = ()
    descriptors: Annotated[tuple[tuple[Pid, Count], ...], Meta(max_length=_MOST_ENTRIES)] = ()
    mapped: Annotated[tuple[Count, ...], Meta(max_length=_MOST_ENTRIES)] = ()
    exe: Count | None = None
    cwd: Count | None = None
    root: Count | None = None


class AskedName(Struct, frozen=True):
    """A user or group of the tree (`gives_rights`: of a thread that is not root's) or of its files."""

    kind: Literal["user", "group"]
    number: Identifier
    name: Text = ""
    gives_rights: bool = False


class AskedProgram(Struct, frozen=True):
    """A program, as `crckpt.host.program.Program` has it."""

    executable: Text = ""
    called: Text = ""
    script: Text | None = ""
    unit: Text = ""


class MoveQuestions(Struct, frozen=True):
    """What a live tree needs of the host to which it is to move.

    - `asked`: when, in seconds since 1970
    - `namespaces`: of the source's crckpt
    - `memory`: bytes of the tree's memory that are in no file
    - `security_module`: as in images/inventory.proto
    - `program`: what the tree's root runs
    - `moved_addresses`: to move with the tree, as ADDR/LEN@DEV
    - `sends_files`: files that are missing, and what logs gain, will be sent
    - `tty`: what the tree is to get instead of its terminal; None: nothing was chosen
    - `lazy`: it is to run before its memory is filled
    - `transaction`: the name of one that the source has begun in its store; empty if it has no store
    - `watched`: paths that it watches (inotify, fanotify)
    """

    asked: float
    host: Host
    job: JobName
    processes: Annotated[tuple[AskedProcess, ...], Meta(min_length=1, max_length=1 << 20)]
    namespaces: Annotated[tuple[tuple[Text, Count], ...], Meta(max_length=64)]
    memory: Count
    files: Annotated[tuple[AskedFile, ...], Meta(max_length=MOST_FILES)] = ()
    sockets: Annotated[tuple[Socket, ...], Meta(max_length=_MOST_ENTRIES)] = ()
    terminals: Annotated[tuple[AskedTerminal, ...], Meta(max_length=_MOST_ENTRIES)] = ()
    pipes: Annotated[tuple[Pipe, ...], Meta(max_length=_MOST_ENTRIES)] = ()
    locks: Annotated[tuple[FileLock, ...], Meta(max_length=_MOST_ENTRIES)] = ()
    names: Annotated[tuple[AskedName, ...], Meta(max_length=_MOST_ENTRIES)] = ()
    closed_pipes: Annotated[tuple[Count, ...], Meta(max_length=_MOST_ENTRIES)] = ()
    attributes: AttributeRecord | None = None
    security_module: Identifier = 0
    has_clocks: bool = False
    program: AskedProgram = AskedProgram()
    tcp: Literal["keep", "close"] | None = None
    moved_addresses: Addresses = ()
    allows_weaker: bool = False
    tty: Literal["new", "null"] | None = None
    sends_files: bool = False
    lazy: bool = False
    transaction: Annotated[str, Meta(pattern=r"\A([0-9]{1,10}-[0-9a-f]{8})?\Z")] = ""
    watched: Annotated[tuple[FilePath, ...], Meta(max_length=_MOST_ENTRIES)] = ()


_DECODER: Final = msgspec.msgpack.Decoder(MoveQuestions)
_FILES_DECODER: Final = msgspec.msgpack.Decoder(Annotated[tuple[AskedFile, ...], Meta(max_length=MOST_FILES)])


def encode_questions(questions: MoveQuestions) -> bytes:
    """Encode the questions. Raises HostCannot if the tree has more files than crckpt can ask about."""
    content = encode(questions)
    if len(content) > MOST_BYTES or len(questions.files) > MOST_FILES:
        raise HostCannot(
            f"the tree uses {len(questions.files):,} files, which are more than a move can check",
            hint="dump it with --stop, copy the store, and restore it there",
        )
    return content


def decode_questions(content: bytes) -> MoveQuestions:
    """Decode the questions of another host. Raises IntegrityError if they are damaged, or contradict themselves."""
    questions = decode_content(content, _DECODER, "the questions", MOST_BYTES)
    _check_ids(questions)
    _check_addresses(questions)
    names = (each.name_bytes for each in questions.sockets if isinstance(each, UnixSocket) and each.name_bytes)
    _check_paths(file.path for file in questions.files)
    _check_paths((*questions.watched, *(name for name in names if not name.startswith(b"@"))))
    return questions


def decode_files(content: bytes) -> tuple[AskedFile, ...]:
    """Decode files of another host. Raises IntegrityError."""
    files: tuple[AskedFile, ...] = decode_content(content, _FILES_DECODER, "the files")
    _check_paths(file.path for file in files)
    return files


def _check_ids(questions: MoveQuestions) -> None:
    things: tuple[AskedFile | Socket | AskedTerminal | Pipe, ...] = (
        *questions.files,
        *questions.sockets,
        *questions.terminals,
        *questions.pipes,
    )
    paths = {file.id for file in questions.files}
    known = {thing.id for thing in things}
    if len(known) != len(things):
        raise IntegrityError("two files in the questions have the same id")
    if {each.file for each in questions.terminals} - paths - {None}:
        raise IntegrityError("the path of a terminal is not in the questions")
    pids = {process.pid for process in questions.processes}
    if len(pids) != len(questions.processes) or 0 in pids:
        raise IntegrityError("a process appears twice in the questions, or has no PID")
    for process in questions.processes:
        opened = {number for _, number in process.descriptors}
        places = {each for each in (process.exe, process.cwd, process.root) if each is not None}
        if not opened <= known or not {*process.mapped, *places} <= paths:
            raise IntegrityError(f"process {process.pid} has a file open that is not in the questions")
    if {lock.pid for lock in questions.locks} - pids:
        raise IntegrityError("a process that is not in the questions has a lock")


def _check_addresses(questions: MoveQuestions) -> None:
    # A name would make the destination ask a name server.
    inet = [each for each in questions.sockets if isinstance(each, InetSocket)]
    moved = (each.partition("/")[0] for each in questions.moved_addresses)
    for host in (*(end.host for each in inet for end in (each.source, each.destination)), *moved):
        try:
            ip_address(host)
        except ValueError as error:
            raise IntegrityError(f"the questions of the other host have a bad address: {error}") from error
        if "%" in host:  # the kernel's tables name no interfaces
            raise IntegrityError("the questions of the other host have a bad address: it names an interface")


def _check_paths(paths: Iterable[bytes]) -> None:
    for path in paths:
        if not path.startswith(b"/") or b"\0" in path or b".." in path.split(b"/"):
            raise IntegrityError(f"{os.fsdecode(path)!r} is not an absolute path")
