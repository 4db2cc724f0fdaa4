"""The gate of a move: ask about a live process, and answer on this host, or in namespaces of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal

from dump_targets import observe_live, target_of
from msgspec.structs import replace
from small_programs import read
from target_processes import PROGRAMS

from crckpt.host.program import read_program
from crckpt.migrate.preflight.answers import MoveAnswers, answer, decode_answers
from crckpt.migrate.preflight.ask import ask
from crckpt.migrate.preflight.questions import MoveQuestions, decode_questions, encode_questions
from crckpt.migrate.preflight.report import GateReport, make_report
from crckpt.migrate.wire.messages import RestoreOptions
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.request import DumpRequest

HOST: Final = "db2"
_BY_DEFAULT: Final = RestoreOptions()
NEW_PIDS: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def target_at(pid: int, store: Path, tcp: Literal["keep", "close"] | None = None) -> DumpTarget:
    """A target of a dump that ends the tree of this process."""
    request = DumpRequest(str(pid), stop=True, tcp=tcp)
    process = read(pid)
    target = target_of(Context(store), observe_live(process), request)
    return replace(target, program=read_program(pid, process.comm, ""))


def ask_about(target: DumpTarget, options: RestoreOptions = _BY_DEFAULT) -> MoveQuestions:
    """The questions, after they have travelled."""
    return decode_questions(encode_questions(ask(target, options)))


def answer_here(questions: MoveQuestions, store: Path, move: tuple[str, str] | None = None) -> MoveAnswers:
    """The answers of this host."""
    return answer(questions, Context(store), move)


def answer_in(words: tuple[str, ...], questions: MoveQuestions, store: Path) -> MoveAnswers:
    """The answers of a process that `words` start."""
    command = (*words, sys.executable, str(PROGRAMS / "answers.py"), str(store))
    result = subprocess.run(command, input=encode_questions(questions), stdout=subprocess.PIPE, check=True)
    return decode_answers(result.stdout)


def report(target: DumpTarget, questions: MoveQuestions, answers: MoveAnswers, ahead: float = 0.0) -> GateReport:
    """The report of the source, whose clock the other one is so many seconds `ahead` of."""
    now = time.time() - ahead
    return make_report(target, questions, answers, (now - (answers.sent - answers.received), now), HOST)


def keys(answers: MoveAnswers) -> list[str]:
    """The keys of all blockers."""
    return [found.key for found in answers.blockers]


def warned(answers: MoveAnswers) -> list[str]:
    """The keys of all warnings."""
    return [found.key for found in answers.warnings]
