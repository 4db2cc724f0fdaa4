"""Judge whether a host can take a live tree, from the questions about the tree and a survey of the host. Pure.

The destination judges, by the checks of its own restores (`judge_restore`, `judge_attributes`). Here is only what a
move has to compare and a restore has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause, mebibytes
from crckpt.causes.catalogue import OF_FILES
from crckpt.causes.finding import distinct
from crckpt.migrate.preflight.judge_files import LocalFile, find_completed, is_shared, judge_files
from crckpt.migrate.preflight.questions import MoveQuestions
from crckpt.preflight.restore.attributes import AttributeVerdict
from crckpt.preflight.restore.checks import judge_restore
from crckpt.preflight.restore.host import HostState
from crckpt.preflight.restore.plan import PlannedRestore


class Survey(Struct, frozen=True):
    """What the destination has found on its host.

    - `files`: by the id in the questions
    - `names`: of the asked users and groups, in the order of the questions
    - `store`, `store_free`: the directory of the store, and its free bytes
    - `criu_failure`: why no CRIU works; empty if one does
    - `job_program`: the other program of which its store has checkpoints under the name of the job, if any
    - `move`: id and state of another move of the job
    """

    host: HostState
    attributes: AttributeVerdict
    files: dict[int, LocalFile]
    names: tuple[str, ...]
    store: str
    store_free: int
    criu_failure: str = ""
    job_program: str = ""
    move: tuple[str, str] | None = None


class Judgement(Struct, frozen=True):
    """What prevents a move, what it loses, and the ids of files that are not there: `--send-files` may send them.

    `logs`: id and size here of each log that the source completes. `shared`: the ids of what is the same file here.
    """

    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    lacking: tuple[int, ...] = ()
    logs: tuple[tuple[int, int], ...] = ()
    shared: tuple[int, ...] = ()


def judge(questions: MoveQuestions, planned: PlannedRestore, survey: Survey) -> Judgement:
    """Compare what the tree needs with what the host has."""
    verdict = judge_restore(planned, _without_arriving(questions, planned, survey.host))
    files = judge_files(questions, planned, survey.host, survey.files)
    names = tuple(_compare_names(questions, survey))
    weaker = (*survey.attributes.weaker, *(found for found in names if found.key == "rights-of-another"), *files.weaker)
    blockers = (
        *_find_other_uses(questions, survey),
        *([cause("no-criu").finding(why=survey.criu_failure)] if survey.criu_failure else ()),
        *(found for found in verdict.blockers if found.key not in OF_FILES),
        *files.blockers,
        *_find_connections_that_stay(planned),
        *(() if questions.allows_weaker else weaker),
    )
    warnings = (
        *(found for found in verdict.warnings if found.key not in OF_FILES),
        *files.warnings,
        *survey.attributes.lost,
        *(weaker if questions.allows_weaker else ()),
        *(found for found in names if found.key != "rights-of-another"),
        *_find_tight_store(questions, survey),
    )
    known = {file.id: survey.files.get(file.id) for file in questions.files if not file.removed}
    lacking = tuple(number for number, here in known.items() if here is not None and here.is_missing)
    logs = tuple(find_completed(questions, planned, survey.files))
    shared = tuple(
        file.id
        for file in questions.files
        if (here := survey.files.get(file.id)) is not None and (here.is_same or is_shared(file, here))
    )
    return Judgement(distinct(blockers), distinct(warnings), lacking, logs, shared)


def _without_arriving(questions: MoveQuestions, planned: PlannedRestore, host: HostState) -> HostState:
    """Leave out the missing addresses that move with the tree."""
    moved = {_address(each.partition("/")[0]) for each in questions.moved_addresses} - {None}
    arriving = {
        socket.id
        for socket in planned.tree.inet_sockets
        if host.refused.get(socket.id) == "missing" and _address(socket.source.host) in moved
    }
    return replace(host, refused={number: why for number, why in host.refused.items() if number not in arriving})


def _find_other_uses(questions: MoveQuestions, survey: Survey) -> Iterator[Finding]:
    if survey.move is not None:
        move, state = survey.move
        yield cause("move-in-progress").finding(job=questions.job, move=move, state=state)
    if survey.job_program:
        yield cause("job-there").finding(job=questions.job, program=survey.job_program)


def _find_connections_that_stay(planned: PlannedRestore) -> Iterator[Finding]:
    """Find connections with a program on the source's own host that is not in the tree."""
    if not planned.keeps_connections or planned.tree.is_apart("net"):
        return
    ends = {(_end(each.source.host), each.source.port) for each in planned.tree.established}
    for each in planned.tree.established:
        own, other = _end(each.source.host), _end(each.destination.host)
        is_local = own == other or (other is not None and other.is_loopback)
        if is_local and (other, each.destination.port) not in ends:
            yield cause("connection-stays").finding(connection=each.title)


def _compare_names(questions: MoveQuestions, survey: Survey) -> Iterator[Finding]:
    for asked, there in zip(questions.names, survey.names, strict=True):
        values = {"kind": asked.kind, "number": asked.number}
        if asked.name and not there:
            yield cause("user-missing").finding(name=asked.name, **values)
        elif there not in ("", asked.name):
            key = "rights-of-another" if asked.gives_rights else "user-differs"
            yield cause(key).finding(here=asked.name or "no name", there=there, **values)


def _find_tight_store(questions: MoveQuestions, survey: Survey) -> Iterator[Finding]:
    if survey.store_free < questions.memory:
        needed, free = mebibytes(questions.memory), mebibytes(survey.store_free)
        yield cause("move-space").finding(needed=needed, free=free, directory=survey.store)


def _end(host: str) -> IPv4Address | IPv6Address | None:
    """The address of an end of a connection: the IPv4 address that an IPv6 socket uses."""
    found = _address(host)
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
