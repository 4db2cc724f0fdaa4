"""What may come next on a command line: commands, options, names in the store, live trees and hosts of ssh."""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from crckpt.cli import find_command
from crckpt.cli.app import COMMANDS, make_parser
from crckpt.cli.format import local_time, on_one_line, short_id
from crckpt.cli.help import UNLISTED
from crckpt.cli.options import make_context, places
from crckpt.errors import CrckptError, HostCannot
from crckpt.host import proc
from crckpt.host.process import run
from crckpt.model import CheckpointId, JobName
from crckpt.ops.attach import list_terminals
from crckpt.store import Checkpoint, Repository, Tag
from crckpt.store.layout import checkpoint_directory
from crckpt.store.move_status import find_status
from crckpt.store.moves import Move, read_all_moves
from crckpt.store.refs import RefTargets, resolve

Words: TypeAlias = Iterator[tuple[str, str]]
"""Words and their descriptions."""

_Parameter: TypeAlias = Any  # a Parameter of click, of which typer has its own copy
_GLOBAL: Final = (("--help", "Show this message and exit."), ("--version", "Print the versions of crckpt and CRIU."))
_WIDEST: Final = 64
# A store may have ten thousand checkpoints, and to read them takes a second.
_READS_S: Final = 0.3
# Seconds: systemctl waits for a systemd that hangs.
_UNITS_S: Final = 1.0
_LONGEST: Final = 40
_CGROUPS: Final = "/sys/fs/cgroup/"
# Bytes: a configuration of ssh is read while the user types.
_MOST_BYTES: Final = 1 << 20
_PATTERN: Final = frozenset("*?!")
_KINDS: Final = (("unit:", "a service of systemd"), ("pidfile:", "a file with a PID"), ("cgroup:", "a control group"))


class CommandLine:
    """A command and the words after it, of which the last is being typed."""

    def __init__(self, command: str, words: Sequence[str]) -> None:
        self.parameters: Sequence[_Parameter] = make_parser(command).params
        self.typed = words[-1]
        self.values: dict[str, str] = {}
        self.positional: list[str] = []
        self.options_end = False
        self.open_option: _Parameter | None = None
        for word in words[:-1]:
            self._take(word)

    def next_argument(self) -> _Parameter | None:
        """Return the argument that a word here would be."""
        arguments = [each for each in self.parameters if each.param_type_name == "argument"]
        # -1: the last argument takes any number of words (REF...).
        last = arguments[-1:] if arguments and arguments[-1].nargs == -1 else []
        return next(iter(arguments[len(self.positional) :] or last), None)

    def option_named(self, word: str) -> _Parameter | None:
        """Find an option by its name."""
        return next((each for each in self.parameters if word in (*each.opts, *each.secondary_opts)), None)

    @property
    def stored_names(self) -> _StoredNames:
        """The names in the store of the command line."""
        # typer reads these variables only while it parses a whole command line.
        variables = {"store": os.environ.get("CRCKPT_STORE"), "config": os.environ.get("CRCKPT_CONFIG")}
        for name, variable in variables.items():
            setattr(places, name, Path(value) if (value := self.values.get(name) or variable) else None)
        return _StoredNames(make_context().store)

    def _take(self, word: str) -> None:
        if self.open_option is not None:
            self.values[self.open_option.name] = word
            self.open_option = None
        # A dash alone is stdin: an argument.
        elif self.options_end or not word.startswith("-") or word == "-":
            self.positional.append(word)
        elif word == "--":
            self.options_end = True
        else:
            name, equals, value = word.partition("=")
            option = self.option_named(name)
            if option is None or option.is_flag:
                return
            if equals:
                self.values[option.name] = value
            else:
                self.open_option = option


def complete(words: Sequence[str]) -> Iterator[str]:
    """Complete the last word. The lines are those of the protocol."""
    typed = words[-1] if words else ""
    # The last word is being typed: it is no command yet.
    command = find_command(words[:-1])
    if not command or (command == "help" and len(words) == words.index("help") + 2):
        listed = (pair for pair in COMMANDS.items() if pair[0] not in UNLISTED)
        yield from _as_lines(_GLOBAL if typed.startswith("-") else listed, typed)
    elif command in COMMANDS:
        yield from _complete_command(CommandLine(command, words[list(words).index(command) + 1 :]))


def _complete_command(line: CommandLine) -> Iterator[str]:
    if line.open_option is not None:
        return _complete_value(line, line.open_option, line.typed)
    if line.typed.startswith("-") and line.typed != "-" and not line.options_end:
        name, equals, value = line.typed.partition("=")
        option = line.option_named(name)
        if equals and option is not None:
            return _complete_value(line, option, value, f"{name}=")
        return _as_lines(_options(line), line.typed)
    argument = line.next_argument()
    return _complete_value(line, argument, line.typed) if argument else _as_lines(_options(line), line.typed)


def _options(line: CommandLine) -> Words:
    for option in line.parameters:
        if (
            option.param_type_name == "option"
            and not option.hidden
            and (option.multiple or option.name not in line.values)
        ):
            yield from ((name, option.help or "") for name in (*option.opts, *option.secondary_opts) if "--" in name)
    yield _GLOBAL[0]


def _complete_value(line: CommandLine, parameter: _Parameter, typed: str, before: str = "") -> Iterator[str]:
    if choices := getattr(parameter.type, "choices", None):
        return _as_lines(((each, "") for each in choices), typed, before)
    if parameter.type.name in ("path", "file", "directory", "filename"):
        is_directory = parameter.name in ("directory", "store", "staging") or parameter.type.name == "directory"
        return iter(("directories" if is_directory else "files",))
    words = _FINDERS.get(parameter.name)
    found = list(_as_lines(words(line, typed), typed, before)) if words else []
    # One line is the heading alone: nothing in the store fits.
    if parameter.name in _OR_FILES and len(found) <= 1:
        return iter(("files",))
    return iter(found)


def _as_lines(words: Words | Sequence[tuple[str, str]], typed: str, before: str = "") -> Iterator[str]:
    yield "words"
    known = set[str]()
    for word, description in words:
        # A tab or a line break in a name would break the protocol. bash would insert what two lines have in common: of
        # a word that is there twice, its description, too.
        if word.startswith(typed) and word == on_one_line(word) and word not in known:
            known.add(word)
            # The first sentence of the description, or as much of it as fits beside the word.
            sentence = re.split(r"[.:] ", " ".join(description.split()))[0]
            plain = sentence.replace("`", "").replace("**", "").removesuffix(".")
            yield f"{before}{word}\t{on_one_line(textwrap.shorten(plain, _WIDEST, placeholder=' ...'))}"


class _StoredNames:
    """The newest checkpoints of a store, as many as can be read in a moment, and its tags. Nothing if it is not one."""

    def __init__(self, store: Path) -> None:
        self._tags: tuple[Tag, ...] = ()
        self._checkpoints: list[Checkpoint] = []
        self._moves: tuple[Move, ...] = ()
        with suppress(OSError, CrckptError):
            repository = Repository.open(store)
            self._tags = repository.tags()
            self._moves, _ = read_all_moves(repository.backend)
            self._checkpoints = sorted(_read_newest(repository), key=lambda checkpoint: checkpoint.order)

    def jobs(self) -> Words:
        """Name the jobs, and when each got its newest checkpoint."""
        newest = {checkpoint.job: checkpoint for checkpoint in self._checkpoints}
        return ((job, f"newest of {local_time(newest[job].created)}") for job in sorted(newest))

    def refs(self, typed: str) -> Words:
        """Name the jobs, `job:tag`, and ids: these only if their first digits are typed, because there are many."""
        yield from self.jobs()
        made = {checkpoint.id: checkpoint for checkpoint in self._checkpoints}
        for tag in self._tags:
            yield f"{tag.job}:{tag.name}", f"of {local_time(made[tag.id].created)}" if tag.id in made else ""
        if typed:
            for checkpoint in reversed(self._checkpoints):
                # A shell keeps only words that begin with what is typed.
                short = short_id(checkpoint.id)
                word = checkpoint.id if len(typed) > len(short) else short
                yield word, f"{checkpoint.job} of {local_time(checkpoint.created)}"

    def tags(self, ref: str) -> Words:
        """Name the tags of the job of a ref."""
        found = self._find(ref)
        return ((tag.name, "") for tag in self._tags if found is not None and tag.job == found.job)

    def processes(self, ref: str) -> Words:
        """Name the processes of a checkpoint."""
        found = self._find(ref)
        return ((str(task.pid), task.comm) for task in (found.tree if found is not None else ()))

    def moves(self) -> Words:
        """Name the moves by their ids: those that are unfinished, or all if none is."""
        found = tuple(map(find_status, self._moves))
        unfinished = tuple(status for status in found if status.next_command)
        return ((status.move.id, f"{status.move.job}, {status.move.peer}") for status in unfinished or found)

    def _find(self, ref: str) -> Checkpoint | None:
        jobs: dict[JobName, list[CheckpointId]] = {}
        for checkpoint in self._checkpoints:
            jobs.setdefault(checkpoint.job, []).append(checkpoint.id)
        ids = tuple(checkpoint.id for checkpoint in self._checkpoints)
        with suppress(CrckptError):
            wanted = resolve(ref, RefTargets(jobs, ids, self._tags))
            return next(checkpoint for checkpoint in self._checkpoints if checkpoint.id == wanted)
        return None


def _read_newest(repository: Repository) -> Iterator[Checkpoint]:
    """Read manifests, the newest first, for a moment."""
    ends = time.monotonic() + _READS_S
    written: list[tuple[int, CheckpointId]] = []
    for checkpoint_id in repository.ids():
        with suppress(OSError):
            # The time of the directory is about that of the checkpoint, and needs no manifest to be read.
            status = (repository.root / checkpoint_directory(checkpoint_id)).stat()
            written.append((status.st_mtime_ns, checkpoint_id))
    for _, checkpoint_id in sorted(written, reverse=True):
        if time.monotonic() > ends:
            return
        with suppress(OSError, CrckptError):
            yield repository.get(checkpoint_id)


def _find_targets(typed: str) -> Words:
    """Find targets that begin with what is typed, and what each is."""
    kind, colon, rest = typed.partition(":")
    if not colon:
        yield from _processes()
        yield from _KINDS
    elif kind == "unit":
        yield from _units(rest)
    elif kind == "pidfile":
        yield from _paths(kind, rest or "/run/", files=True)
    elif kind == "cgroup":
        yield from _paths(kind, rest or _CGROUPS, files=False)


def _find_hosts(typed: str) -> Words:
    """Find the hosts of ~/.ssh/config that begin with what is typed, after USER@ too."""
    user, at, _ = typed.rpartition("@")
    lines: list[str] = []
    with suppress(OSError, RuntimeError), (Path.home() / ".ssh/config").open(errors="replace") as file:
        lines = file.read(_MOST_BYTES).splitlines()
    for line in lines:
        # ssh_config(5): keywords in any case, and `=` or blanks before the value.
        keyword, *names = line.replace("=", " ", 1).split()[:64] or [""]
        if keyword.lower() == "host":
            yield from ((f"{user}{at}{name.strip(chr(34))}", "") for name in names if not _PATTERN & set(name))


def _processes() -> Words:
    """Find the processes of programs: not the kernel's own, and neither crckpt nor the shells in which it runs."""
    own = {os.getpid(), *proc.ancestors(os.getpid())}
    for pid in sorted(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        with suppress(OSError):
            place = Path("/proc", str(pid))
            words = (place / "cmdline").read_bytes()[:4096].rstrip(b"\0").split(b"\0")
            # A kernel thread has no command line.
            if any(words) and pid not in own:
                comm = (place / "comm").read_text(errors="replace").strip()
                # `python3 train.py`
                yield str(pid), " ".join((comm, *(word.decode(errors="replace") for word in words[1:3])))[:_LONGEST]


def _units(typed: str) -> Words:
    # Source: sd_booted(3).
    if not Path("/run/systemd/system").is_dir():
        return
    words = ["systemctl", "list-units", "--type=service", "--state=running", "--plain", "--no-legend", "--no-pager"]
    with suppress(HostCannot):
        for line in run.run(words, timeout=_UNITS_S).output.splitlines():
            fields = line.split(maxsplit=4)
            if len(fields) >= 4 and fields[0].startswith(typed):
                yield f"unit:{fields[0]}", fields[4] if len(fields) > 4 else ""


def _paths(kind: str, typed: str, *, files: bool) -> Words:
    folder, slash, start = typed.rpartition("/")
    before = folder + slash
    with suppress(OSError):
        for entry in sorted(os.scandir(before or "."), key=lambda it: it.name):
            if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
                if entry.is_dir():
                    yield f"{kind}:{before}{entry.name}/", ""
                elif files:
                    yield f"{kind}:{before}{entry.name}", ""


# What an argument may be, by the names of the parameters of all commands.
_FINDERS: Final[Mapping[str, Callable[[CommandLine, str], Words]]] = {
    "target": lambda line, typed: chain(_find_targets(typed), line.stored_names.jobs()),
    "end": lambda _, typed: _find_targets(typed),
    "terminal": lambda *_: ((each.tree.job, f"PID {each.tree.root}, {each.tree.comm}") for each in list_terminals()),
    "tty": lambda *_: iter((("new", "a new terminal, for crckpt attach"), ("null", "nothing"))),
    "job": lambda line, _: line.stored_names.jobs(),
    **dict.fromkeys(("ref", "refs", "first", "second", "subject"), lambda line, typed: line.stored_names.refs(typed)),
    "name": lambda line, _: line.stored_names.tags(line.positional[0]),
    "pid": lambda line, _: line.stored_names.processes(line.positional[0]),
    "host": lambda _, typed: _find_hosts(typed),
    "resume": lambda line, _: line.stored_names.moves(),
}
_OR_FILES: Final = frozenset({"subject", "tty"})
