"""Find what an interpreter runs: a script, a module, a class, or code on its command line. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

MODULE: Final = "-m "
CODE: Final = "-c "
CLASS: Final = "class "
"""The beginnings of a script's text for what is no file."""

_JAVA_VALUES: Final = (
    "-cp -classpath --class-path -p --module-path --upgrade-module-path --add-modules --limit-modules --add-exports "
    "--add-opens --add-reads --patch-module --enable-native-access --source"
)


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
