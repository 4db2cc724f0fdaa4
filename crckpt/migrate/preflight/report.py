"""The report of the gate, on the source: everything that prevents a move, and what it may lose, each by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from crckpt.causes import Finding, cause, mebibytes, preflight_refusal
from crckpt.causes.catalogue import CAUSE_BY_KEY
from crckpt.errors import HostCannot, IntegrityError
from crckpt.host.network.devices import read_devices
from crckpt.migrate.preflight.answers import MoveAnswers
from crckpt.migrate.preflight.questions import AskedFile, MoveQuestions
from crckpt.migrate.preflight.recheck import ComparedFiles, Right, select_compared
from crckpt.ops.dump.examine import DumpTarget
from crckpt.preflight.dump.space import Growth

# Programs that exchange times within a second notice less than that; NTP keeps clocks within milliseconds.
_MOST_CLOCK_DIFFERENCE_S: Final = 2.0
# Files that a reboot removes must be on the destination, too. Connections are accepted before the move.
_OF_DUMPS: Final = ("volatile-file", "in-flight-skipped")
# What the destination has may be free in a moment.
_IN_USE: Final = frozenset(
    {
        "lock-taken",
        "move-in-progress",
        "pid-ours",
        "pid-taken",
        "pid-unreaped",
        "port-closing",
        "port-taken",
        "terminal-taken",
    }
)
# Only --allow-weaker allows these.
_OF_RIGHTS: Final = frozenset({"file-of-another", "rights-of-another"})


class GateReport(Struct, frozen=True):
    """What prevents the move of a tree, and what it may lose.

    `lacking`: files that the destination does not have. `logs`: to complete there, with their sizes there.
    `rights`: the users and groups whose names it has compared. `compared`: the files.
    """

    blockers: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    lacking: tuple[AskedFile, ...] = ()
    logs: tuple[tuple[AskedFile, int], ...] = ()
    rights: frozenset[Right] = frozenset()
    compared: ComparedFiles | None = None

    def check(self, *, preflight: bool = True) -> None:
        """Raise PreflightRefused with all blockers; without `preflight`, only with those that give more rights."""
        blockers = self.blockers if preflight else tuple(found for found in self.blockers if found.key in _OF_RIGHTS)
        if blockers:
            is_in_use = any(found.key in _IN_USE for found in blockers)
            raise preflight_refusal(blockers, is_in_use=is_in_use)


def make_report(
    target: DumpTarget, questions: MoveQuestions, answers: MoveAnswers, exchange: tuple[float, float], host: str
) -> GateReport:
    """Report what prevents a move of the target to `host`, as the user typed it: here, and there.

    `exchange`: when the questions were sent and the answers received, in seconds since 1970 by our clock. Raises
    IntegrityError if the answers do not belong to the questions.
    """
    files = {file.id: file for file in questions.files}
    logs = {number for number, _ in answers.logs}
    if not files.keys() >= {*answers.lacking, *answers.shared, *logs}:
        raise IntegrityError("the answers of the other host name files that it was not asked about")
    plan = target.plan
    lost = (found.word_for("move") for found in plan.warnings if found.key not in _OF_DUMPS)
    untested = () if target.request.force else plan.untested
    versions = {"ours": questions.host.criu_version, "theirs": answers.host.criu_version}
    # Else the tree brings its own: no file was compared.
    has_our_mounts = dict(questions.namespaces).get("mnt") == dict(questions.processes[0].namespaces).get("mnt")
    return GateReport(
        # A move ends the tree here: what no test has shown to come back must not be lost.
        blockers=(
            *(found.word_for("move") for found in (*plan.blockers, *untested)),
            *word_there(answers.blockers, host, **versions),
        ),
        warnings=(*lost, *word_there(answers.warnings, host, **versions), *_compare_clocks(answers, exchange, host)),
        lacking=tuple(files[number] for number in answers.lacking),
        logs=tuple((files[number], size) for number, size in answers.logs),
        rights=frozenset((name.kind, name.number) for name in questions.names if name.gives_rights),
        compared=select_compared(questions.files, answers.shared, logs) if has_our_mounts else None,
    )


def plan_sending(questions: MoveQuestions, report: GateReport) -> tuple[AskedFile, ...]:
    """Return the files to send. Raises PreflightRefused with all that prevents the move nevertheless."""
    sendable, refused = find_sendable(questions, report.lacking)
    others = tuple(found for found in report.blockers if found.key != "file-missing")
    if others or refused:
        raise preflight_refusal((*others, *refused))
    return sendable


def judge_store_space(report: GateReport, target: DumpTarget, answers: MoveAnswers, host: str) -> GateReport:
    """Refuse a move that surely does not fit into the store there; keep the warning of one that may not."""
    memory, free = target.observed.memory, answers.store_free
    if free is None or free >= memory or report.blockers:
        return report
    # Rarely needed and slow to import: a trial stores memory.
    from crckpt.ops.dump.forecast import try_growth

    growth = try_growth(target.observed, target.job, target.context, memory)
    if growth is None:
        return report
    judged = judge_growth(growth, free)
    if judged == "tight":
        return report
    values = {"needed": mebibytes(growth.least), "free": mebibytes(free), "directory": answers.store}
    full = cause("move-full").finding(**values).word_for("there", peer=host)
    refused = (full,) if judged == "full" else ()
    others = tuple(found for found in report.warnings if found.key != "move-space")
    return replace(report, blockers=refused, warnings=others)


def judge_growth(growth: Growth, free: int) -> Literal["full", "tight", ""]:
    """Return whether a store with `free` bytes surely becomes full, or probably; empty if neither."""
    return "full" if growth.least > free else "tight" if growth.likely > free else ""


def word_there(findings: Iterable[Finding], host: str, **versions: str) -> Iterator[Finding]:
    """Put findings of the destination into words for the user here. Raises IntegrityError for what is no finding."""
    for found in findings:
        if not CAUSE_BY_KEY.keys() >= {found.key, found.get("remedy_of") or found.key}:
            raise IntegrityError(f"the other host has found what this crckpt does not know: {found.key!r}")
        own = _find_own_address(found.get("host")) if found.key == "address-missing" else {}
        yield found.word_for("there", peer=host, **versions, **own)


def _find_own_address(ip: str) -> dict[str, str]:
    with suppress(HostCannot):
        for device in read_devices():
            for each in device.addresses:
                if each.ip and each.ip == ip:
                    return {"own": f"{each.ip}/{each.length}@{device.name}"}
    return {}


def _compare_clocks(answers: MoveAnswers, exchange: tuple[float, float], host: str) -> tuple[Finding, ...]:
    sent, received = exchange
    # As NTP does (RFC 5905, section 8): the way there and the way back may differ by the round trip.
    ahead = (answers.received - sent + answers.sent - received) / 2
    trip = max((received - sent) - (answers.sent - answers.received), 0.0)
    if abs(ahead) - trip / 2 <= _MOST_CLOCK_DIFFERENCE_S:
        return ()
    direction = "ahead of" if ahead > 0 else "behind"
    found = cause("clock-differs").finding(seconds=f"{abs(ahead):,.0f}", direction=direction)
    return (found.word_for("there", peer=host),)


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
