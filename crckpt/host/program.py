"""Identify programs: what a person would call one, and whether two are the same; find what interpreters run."""

from __future__ import annotations

import os
import posixpath
import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.proc.procfs import DELETED
from crckpt.host.proc.tree import command_line, working_directory

MODULE: Final = "-m "
CODE: Final = "-c "
CLASS: Final = "class "
"""The beginnings of a script's text for what is no file."""

_JAVA_VALUES: Final = (
    "-cp -classpath --class-path -p --module-path --upgrade-module-path --add-modules --limit-modules --add-exports "
    "--add-opens --add-reads --patch-module --enable-native-access --source"
)

# Programs of many names: the name by which each was started says which one it is.
_MANY_NAMED: Final = frozenset({"busybox", "coreutils", "toybox"})
# A wrapper may run a wrapper; a forged command line has any number of them.
_MOST_WRAPPERS: Final = 8

_SCRIPT_ENDINGS: Final = re.compile(
    r"(?<=[\s\S])\.(py[cwz]?|pex|[cm]?[jt]s|p[lm]|rb|php|phar|(ba|z|k)?sh|fish|lua|[rR]|tcl|jl|dll|exe|jar|war|java)\Z"
)
# Of a jar: app-1.2.3-SNAPSHOT.jar.
_VERSION: Final = re.compile(r"-[0-9]+(\.[0-9A-Za-z_+-]+)*(?=\.[jw]ar\Z)")
# There are many scripts of these names; the directory above them has the name of the program.
_GENERIC: Final = frozenset({"__main__", "index"})
_GENERIC_DIRECTORIES: Final = frozenset({"build", "dist", "lib", "out", "src"})
_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9._-]+")
# Such a name would be taken for the beginning of a checkpoint's id.
_DIGITS_OF_AN_ID: Final = re.compile(r"[0-9a-f]{4,64}")
_LONGEST_NAME: Final = 64
# NAME_MAX (limits.h).
_LONGEST_FILE_NAME: Final = 255
_LONGEST_TITLE: Final = 500
_FALLBACK: Final = "job"
_NO_PATHS: Final = (MODULE, CODE, CLASS)
# The kernel's comm holds so many bytes. Source: TASK_COMM_LEN, include/linux/sched.h.
_COMM_BYTES: Final = 15


class Program(Struct, frozen=True):
    """The program that a process runs.

    - `executable`: the path of its executable; empty if it is unknown
    - `called`: the name by which it was started, or that it has given itself
    - `script`: what an interpreter or a wrapper runs: a path, `-m MODULE`, `class NAME` or `-c CODE`; empty if it runs
      nothing, None if it is unknown
    - `unit`: the control group of the systemd service whose main process it is; empty if it is none
    """

    executable: str
    called: str = ""
    script: str | None = ""
    unit: str = ""

    @property
    def family(self) -> str:
        """The interpreter, whatever its version; empty for any other program."""
        return find_family(posixpath.basename(self.executable))

    @property
    def name(self) -> str:
        """The name that people would give it, as a valid name of a job."""
        for wanted in (self._wanted_name, self.called, posixpath.basename(self.executable)):
            # The user who starts a program chooses these names.
            name = _UNNAMEABLE.sub("-", wanted).strip("-._")[:_LONGEST_NAME].rstrip("-._")
            if name:
                return f"{_FALLBACK}-{name}" if _DIGITS_OF_AN_ID.fullmatch(name) else name
        return _FALLBACK

    @property
    def title(self) -> str:
        """The program in a sentence: the path of its script or executable, or what it is started with."""
        shown = self.executable or self.called or "an unknown program"
        if self.script and self.script.startswith(MODULE):
            shown = f"{self.called} {self.script}"
        elif self.script:
            # Code may be long, and contain secrets.
            shown = f"{self.called} -c ..." if self.script.startswith(CODE) else self.script.removeprefix(CLASS)
        # A command line may have words of any length.
        return shown if len(shown) <= _LONGEST_TITLE else f"{shown[:_LONGEST_TITLE]}..."

    @property
    def _wanted_name(self) -> str:
        if self.unit:
            unit = posixpath.basename(self.unit).removesuffix(".service")
            return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), unit)
        script = self.script or ""
        if script.startswith(MODULE):
            return script.removeprefix(MODULE)
        if script.startswith(CLASS):
            return re.split(r"[./$]", script)[-1]
        name = "" if script.startswith(CODE) else _SCRIPT_ENDINGS.sub("", posixpath.basename(_drop_version(script)))
        above = reversed(posixpath.dirname(script).split("/")) if name in _GENERIC else ()
        return next((part for part in above if part not in _GENERIC_DIRECTORIES), "") or name


def identify(executable: str, words: Sequence[str], directory: str = "", *, comm: str = "", unit: str = "") -> Program:
    """Identify the program of a process by its executable, command line, current directory and comm.

    Any of them may be empty, which is unknown. Nothing but the executable is certain: programs change the others.
    """
    executable = executable.removesuffix(DELETED)
    own = posixpath.basename(executable)
    started_as = posixpath.basename(words[0]).lstrip("-") if words else ""
    is_many_named = own in _MANY_NAMED or not own
    name = started_as if is_many_named else own
    if (command := _unwrap(name, words)) is not None:
        name = posixpath.basename(command[0])
        script = find_script(name, command[1:])
        # A command without a slash is found by PATH.
        place = directory if script or "/" in command[0] else ""
        return Program(executable, name, _locate(script or command[0], place), unit)
    family = find_family(name)
    if not family:
        # The kernel takes the comm from the file that was executed: a forged first word differs from it.
        # A program that gives itself a title makes it one word: "redis-server *:6379".
        titled = posixpath.basename(words[0].partition(" ")[0]) if words else ""
        names = (started_as,) if is_many_named else (started_as, titled)
        honest = (each for each in names if is_many_named or os.fsencode(comm) == os.fsencode(each)[:_COMM_BYTES])
        called = next(honest, "") or own
        return Program(executable, called, started_as if own in _MANY_NAMED else "", unit)
    if find_family(started_as) == family:
        return Program(executable, started_as, _locate(find_script(name, words[1:]), directory), unit)
    if len(words) > 1:
        return Program(executable, own or started_as, _locate(find_script(name, words[1:]), directory), unit)
    # It has replaced its command line: `gunicorn: master [app]`.
    title = words[0].split(maxsplit=1)[0] if words and words[0].strip() else comm
    return Program(executable, posixpath.basename(title).rstrip(":"), None, unit)


def is_same_program(one: Program, other: Program) -> bool:
    """Return whether two processes run the same program, maybe in another version or with other arguments.

    A service is the same as long as its unit is; a script, wherever it is run from and by whatever interpreter; any
    other program has one executable. What is unknown counts as the same.
    """
    if one.unit and one.unit == other.unit:
        return True
    if not (one.executable and other.executable):
        return not (one.script and other.script) or _is_same_path(one.script, other.script)
    if one.script is None or other.script is None:
        return one.family == other.family
    return _is_same_path(*(each.script or each.family or each.executable for each in (one, other)))


def _is_same_path(one: str, other: str) -> bool:
    one, other = _drop_version(one), _drop_version(other)
    if one == other or one.startswith(_NO_PATHS) or other.startswith(_NO_PATHS):
        return one == other
    # The directory of a relative path is unknown.
    is_known = one.startswith("/") and other.startswith("/")
    return not is_known and posixpath.basename(one) == posixpath.basename(other)


def _locate(script: str, directory: str) -> str:
    """The script with its whole path, if that is known."""
    if not script or script.startswith(_NO_PATHS):
        return script
    # A daemon goes to the root directory: its script was started from elsewhere.
    directory = directory.removesuffix(DELETED)
    is_known = script.startswith("/") or (directory.startswith("/") and directory.strip("/"))
    return posixpath.normpath(posixpath.join(directory, script)) if is_known else script


def _drop_version(path: str) -> str:
    directory, slash, name = path.rpartition("/")
    # No file has a longer name, but a command line may: the pattern takes time that grows with its square.
    return path if len(name) > _LONGEST_FILE_NAME else f"{directory}{slash}{_VERSION.sub('', name)}"


def read_program(pid: int, comm: str, unit: str = "") -> Program:
    """The program of a process in the service `unit`; as much of it as can be read."""
    executable = ""
    with suppress(OSError):
        executable = str(Path(f"/proc/{pid}/exe").readlink())
    return identify(executable, command_line(pid), working_directory(pid), comm=comm, unit=unit)


class _Wrapper(Struct, frozen=True):
    """The options of a wrapper that take a value, as the next word, and how many words come before the command."""

    values: str = ""
    operands: int = 0


# Those that stay as the parent of the command, and those that become the command: a person may name either.
_WRAPPERS: Final = {
    "chrt": _Wrapper("T P D", operands=1),
    "dumb-init": _Wrapper("r --rewrite"),
    "env": _Wrapper("u C S --unset --chdir --split-string"),
    "ionice": _Wrapper("c n p P u --class --classdata"),
    "nice": _Wrapper("n --adjustment"),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(),
    "stdbuf": _Wrapper("i o e --input --output --error"),
    "sudo": _Wrapper("C D g h p R r T t U u --user --group --chdir --host --prompt"),
    "taskset": _Wrapper(operands=1),
    "time": _Wrapper("f o --format --output"),
    "timeout": _Wrapper("k s --kill-after --signal", operands=1),
    "tini": _Wrapper("p e"),
}
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def _unwrap(name: str, words: Sequence[str]) -> Sequence[str] | None:
    """The command that a wrapper, or a wrapper in a wrapper, runs; None if `name` is no wrapper."""
    found: Sequence[str] | None = None
    for _ in range(_MOST_WRAPPERS):
        wrapper = _WRAPPERS.get(name)
        if wrapper is None:
            break
        place, values = 1, wrapper.values.split()
        # An index: to take words off a list of 60,000, one by one, takes seconds.
        while place < len(words) and words[place].startswith("-"):
            word, place = words[place], place + 1
            if word == "--":
                break
            place += (word if word.startswith("--") else word[-1]) in values
        if name in ("env", "sudo"):
            while place < len(words) and _ASSIGNMENT.fullmatch(words[place]):
                place += 1
        words = words[place + wrapper.operands :]
        if not words:
            break
        found, name = words, posixpath.basename(words[0])
    return found


class Interpreter(Struct, frozen=True):
    """An interpreter, and the options before its script: letters, which may stand together, as in `-uc`, and words.

    - `values`: options that take a value, which is part of the word or the next one
    - `attached`: letters of which the rest of the word is the value
    - `code`, `module`, `file`: options whose value is code, a module, or the script
    - `is_code_operand`: after an option of `code` the first operand is the code (shells)
    - `verbs`: words before the script (`deno run`)
    """

    family: str
    names: str
    values: str = ""
    attached: str = ""
    code: str = ""
    module: str = ""
    file: str = ""
    is_code_operand: bool = False
    verbs: str = ""


# Of python(1), node(1), perlrun(1), ruby(1), php(1), bash(1), dash(1), zsh(1), lua(1), R --help, java(1).
_INTERPRETERS: Final = (
    Interpreter(
        "python",
        r"(python|pypy|ipython|graalpy)[0-9.]*[a-z]*(-dbg)?",
        "W X --check-hash-based-pycs",
        code="c",
        module="m",
    ),
    Interpreter(
        "node",
        r"node(js)?[0-9.]*|bun|deno",
        "r C --require --import --loader --experimental-loader --conditions --title",
        code="e p --eval --print",
        verbs="run",
    ),
    Interpreter("perl", r"perl[0-9.]*", "I", attached="0 C D F M V d i l m x", code="e E"),
    Interpreter("ruby", r"ruby[0-9.]*", "I C r", attached="0 E F K T W i x", code="e"),
    Interpreter("php", r"php[0-9.]*", "c d z S t", code="r B R E", file="f F"),
    Interpreter(
        "shell",
        r"(ba|da|a|z|m?k|ya)?sh[0-9]*|fish",
        "o O --rcfile --init-file",
        code="c --command",
        is_code_operand=True,
    ),
    Interpreter("lua", r"lua(jit)?[0-9.]*", "l", code="e"),
    Interpreter("tcl", r"(tclsh|wish)[0-9.]*"),
    Interpreter("R", r"R(script)?", "g", code="e", file="f --file"),
    Interpreter("julia", r"julia", "J C p L t H", code="e E"),
    Interpreter("dotnet", r"dotnet|mono(-sgen)?", verbs="exec"),
    Interpreter("java", "java"),
)


def find_family(name: str) -> str:
    """The interpreter that an executable's name stands for, whatever its version; empty for any other program."""
    return next((each.family for each in _INTERPRETERS if re.fullmatch(each.names, name)), "")


def find_script(name: str, words: Sequence[str]) -> str:
    """Find what the interpreter `name` runs; `words` follow its name on the command line. Empty if there is nothing.

    It is the path of a script as it was typed, or `-m MODULE`, `class NAME` or `-c CODE`.
    """
    found = next((each for each in _INTERPRETERS if re.fullmatch(each.names, name)), None)
    if found is None:
        return ""
    return _find_class(words) if found.family == "java" else _find_operand(found, words)


def _find_operand(interpreter: Interpreter, words: Sequence[str]) -> str:
    rest, is_code = deque(words), False
    while rest:
        word = rest.popleft()
        if word == "--" or (word in interpreter.verbs.split() and rest):
            continue
        if is_code and not word.startswith(("-", "+")):
            return f"{CODE}{word}"
        if word == "-":  # the standard input
            return ""
        if not word.startswith(("-", "+")):
            return word
        kind, value = _read_option(interpreter, word)
        if kind == "code" and interpreter.is_code_operand:
            is_code = True
        elif kind:
            found = value or (rest.popleft() if rest else "")
            if kind != "values":
                return {"code": CODE, "module": MODULE, "file": ""}[kind] + found
    return ""


def _read_option(interpreter: Interpreter, word: str) -> tuple[str, str]:
    """The kind of an option with a value, and the value if it is in the same word; empty for a flag."""
    kinds = ("code", "module", "file", "values", "attached")

    def find_kind(option: str) -> str:
        return next((kind for kind in kinds if option in getattr(interpreter, kind).split()), "")

    if word.startswith("--"):
        name, has_value, value = word.partition("=")
        kind = find_kind(name)
        return ("", "") if kind == "values" and has_value else (kind, value)
    for place, letter in enumerate(word[1:], 2):
        if kind := find_kind(letter):
            rest = word[place:]
            # Of these, the value matters only if it is the next word.
            return ("", "") if kind == "attached" or (kind == "values" and rest) else (kind, rest)
    return "", ""


def _find_class(words: Sequence[str]) -> str:
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word in ("-jar", "-m", "--module") and rest:
            return rest[0] if word == "-jar" else f"{CLASS}{rest[0]}"
        if word.startswith("--module="):
            return f"{CLASS}{word.partition('=')[2]}"
        if word in _JAVA_VALUES.split() and rest:
            rest.popleft()
        elif not word.startswith(("-", "@")):
            # `java Main.java` compiles and runs a file.
            return word if word.endswith(".java") else f"{CLASS}{word}"
    return ""
