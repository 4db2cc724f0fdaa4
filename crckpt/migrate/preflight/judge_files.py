"""Judge the files of a live tree: compare each with the file that the other host has at its path. Pure.

- What a restore checks (kind, mode, size, build) is judged by its own check. The words are others: there is no
  checkpoint after which something changed.
- The content of a file without a build-id is compared by a digest. Of a large file, or one that cannot be read, only
  size and time are, and a finding says so.
- Of a log (opened only to append) only the size counts, as in a restore. With --send-files it may be shorter.
- A file on a network file system that both hosts have mounted is the same file, and so is one that two containers on
  one kernel share.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.images.processes import LockKind
from crckpt.migrate.preflight.questions import AskedFile, MoveQuestions
from crckpt.preflight.restore.files import check_file, file_uses, find_needed_files, read_file_facts
from crckpt.preflight.restore.host import FileState, HostState, PlannedRestore


class LocalFile(Struct, frozen=True):
    """The file that a host has at a path.

    - `problem`: empty; `unmounted`: its file system is mounted only when it is used; `silent`: its file system does not
      answer; `unasked`: it comes after such a file; `refused`: the kernel does not let crckpt look (`why`)
    - `state`: None if there is no file, or a problem
    - `digest`: empty if the content was not read
    - `modified`: nanoseconds since 1970
    - `shared_by`: the kind of its network file system; `is_same`: it is the source's, on the same kernel
    - `owners`: the users who own the file, or a directory or link of its path, by their numbers; a name may be empty
    - `local_locks`: the kinds of locks on it that hold on this host only
    """

    problem: Literal["", "unmounted", "silent", "unasked", "refused"] = ""
    state: FileState | None = None
    digest: str = ""
    modified: int = 0
    gid: int = 0
    inode: int = 0
    shared_by: str = ""
    is_same: bool = False
    owners: dict[int, str] = {}
    local_locks: frozenset[LockKind] = frozenset()
    why: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether there is surely no file."""
        return not self.problem and self.state is None


_PROBLEMS: Final = {"unmounted": "file-unmounted", "silent": "file-silent", "refused": "file-refused"}
_OF_ANOTHER: Final = "file-of-another"
_MOST_IN_USE: Final = 3
_WARNINGS: Final = frozenset({"file-in-use", "file-size-only", "file-unmounted", "files-unasked", "owner-differs"})
# shm_open(3). Its content is not in the images, because it has a name.
_NAMED_MEMORY: Final = b"/dev/shm/"


class JudgedFiles(Struct, frozen=True):
    """What files prevent, what the tree may lose with them, and where another user there could command it."""

    blockers: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    weaker: tuple[Finding, ...] = ()


def judge_files(
    questions: MoveQuestions, planned: PlannedRestore, host: HostState, files: dict[int, LocalFile]
) -> JudgedFiles:
    """Compare all files that the tree needs. `files` are those of the host, by the id in the questions."""
    # A tree with its own mounts brings them: there, the paths lead elsewhere.
    found = () if planned.tree.is_apart("mnt") else tuple(_judge_all(questions, planned, host, files))
    # A database has hundreds open: the files in use are counted after the first few.
    counted = [finding for finding in found if finding.key == "file-in-use"][_MOST_IN_USE:]
    warnings = [finding for finding in found if finding.key in _WARNINGS and finding not in counted]
    if counted:
        warnings.append(cause("files-in-use").finding(count=len(counted)))
    return JudgedFiles(
        tuple(finding for finding in found if finding.key not in (*_WARNINGS, _OF_ANOTHER)),
        tuple(warnings),
        tuple(finding for finding in found if finding.key == _OF_ANOTHER),
    )


def _judge_all(
    questions: MoveQuestions, planned: PlannedRestore, host: HostState, files: dict[int, LocalFile]
) -> Iterator[Finding]:
    uses, facts = file_uses(planned.tree), read_file_facts(planned.tree)
    asked = {file.id: file for file in questions.files}
    own = {0, *(uid for process in questions.processes for uid in (process.uid, process.euid))}
    unasked = 0
    for file in find_needed_files(planned.tree):
        question, here = asked[file.id], files.get(file.id, LocalFile(problem="unasked"))
        use = uses.get(file.id, "opened")
        values = {"path": question.name, "use": use, "why": here.why}
        if here.problem == "unasked":
            unasked += 1
        elif here.problem:
            yield cause(_PROBLEMS[here.problem]).finding(**values)
        elif not (here.is_same or is_shared(question, here) or is_completed(questions, question, here)):
            found = {finding.key for finding in check_file(planned, file, host, use, facts)}
            yield from (_word(key, question, here.state, values) for key in sorted(found))
            if not found and here.state is not None:
                # Users here who own the file, or a directory of its path, and had no say in it at the source: they can
                # give it any content, also after it was compared, and to a program any build-id.
                for uid in sorted(here.owners.keys() - own - {question.uid}):
                    yield cause(_OF_ANOTHER).finding(**values, there=f"user {here.owners[uid] or uid}")
                yield from _compare(question, here, here.state, values, is_log=file.is_append_only)
    yield from _find_shared_locks(questions, files, uses)
    if unasked:
        yield cause("files-unasked").finding(count=unasked)
    for question in questions.files:
        if question.removed == "linked":
            yield cause("removed-name").finding(path=question.name, use=uses.get(question.id, "opened"))


def _find_shared_locks(
    questions: MoveQuestions, files: dict[int, LocalFile], uses: dict[int, str]
) -> Iterator[Finding]:
    """Find locks for which the restore would wait: it takes them while the tree still has them on its own host."""
    opened = {(process.pid, fd): number for process in questions.processes for fd, number in process.descriptors}
    asked = {file.id: file for file in questions.files}
    for lock in questions.locks:
        number = opened.get((lock.pid, lock.fd), 0)
        file, here = asked.get(number), files.get(number)
        if file is None or here is None:
            continue
        # One kernel has all locks: two hosts that are containers of one machine.
        if here.is_same or (is_shared(file, here) and lock.kind not in here.local_locks):
            yield cause("lock-everywhere").finding(path=file.name, use=uses.get(number, "opened"))


def is_completed(questions: MoveQuestions, asked: AskedFile, here: LocalFile) -> bool:
    """Return whether the source appends to this log what it lacks; then both compare its begin and its owner."""
    is_shorter = here.state is not None and stat.S_ISREG(here.state.mode) and here.state.size <= asked.size
    return questions.sends_files and asked.is_log and is_shorter


def is_shared(asked: AskedFile, here: LocalFile) -> bool:
    """Return whether it is the same file of a network file system that both hosts have mounted."""
    # The paths and the numbers of inodes could agree by chance on two such file systems: improbable.
    return bool(asked.shared_by) and (asked.shared_by, asked.inode) == (here.shared_by, here.inode)


def _word(key: str, asked: AskedFile, here: FileState | None, values: dict[str, str]) -> Finding:
    if here is None:
        missing = cause("file-missing").finding(**values)
        return missing.fill(remedy_of=find_cause_of_writing(asked)) if asked.is_written else missing
    finding = cause("file-differs").finding(**{**values, "why": _difference(key, asked, here)})
    if key == "file-mode":
        return finding.fill(remedy_of="mode-differs", mode=f"{asked.mode & 0o7777:04o}")
    if asked.is_written:
        return finding.fill(remedy_of=find_cause_of_writing(asked))
    return finding.fill(remedy_of="program-differs") if asked.is_executed else finding


def find_cause_of_writing(asked: AskedFile) -> str:
    """Return the cause whose remedy keeps a file that the program writes the same on both hosts."""
    if asked.path.startswith(_NAMED_MEMORY):
        return "written-memory"
    return "written-log" if asked.is_log else "written-file"


def _difference(key: str, asked: AskedFile, here: FileState) -> str:
    match key:
        case "file-kind":
            return f"it is a {_kind(here.mode)}, but here a {_kind(asked.mode)}"
        case "file-mode":
            return f"its mode is {here.mode & 0o7777:04o}, but here {asked.mode & 0o7777:04o}"
        case "file-replaced":
            return f"its build is not {asked.build_id}"
    return f"it has {here.size} bytes, but here {asked.size}"


def _compare(
    asked: AskedFile, here: LocalFile, state: FileState, values: dict[str, str], *, is_log: bool
) -> Iterator[Finding]:
    """Compare a file whose kind, mode, size and build agree."""
    if stat.S_ISREG(asked.mode):
        differs = () if is_log or asked.build_id else tuple(_compare_content(asked, here, values))
        yield from differs
        if asked.is_mapped and not asked.digest:
            yield cause("file-mapped").finding(**values, remedy_of=find_cause_of_writing(asked))
        elif asked.is_written and all(found.key in _WARNINGS for found in differs):
            same = "size" if is_log else "size and time" if differs else "content"
            yield cause("file-in-use").finding(**values, same=same, remedy_of=find_cause_of_writing(asked))
    if (asked.uid, asked.gid) != (state.owner, here.gid):
        owners = {"here": f"{asked.uid}:{asked.gid}", "there": f"{state.owner}:{here.gid}"}
        yield cause("owner-differs").finding(**values, **owners)


def _compare_content(asked: AskedFile, here: LocalFile, values: dict[str, str]) -> Iterator[Finding]:
    if asked.digest and here.digest:
        if asked.digest != here.digest:
            yield cause("file-differs").finding(**{**values, "why": "its content differs"})
        return
    why = "it cannot be read there" if asked.digest else "it cannot be read, or is too large to be read for a check"
    if asked.modified == here.modified:
        yield cause("file-size-only").finding(**{**values, "why": why})
        return
    yield cause("file-differs").finding(**{**values, "why": f"its time of last change differs, and {why}"})


def _kind(mode: int) -> str:
    return {stat.S_IFREG: "regular file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link"}.get(
        stat.S_IFMT(mode), "device, socket or named pipe"
    )
