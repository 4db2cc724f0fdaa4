"""Find the command that a wrapper runs: `timeout 1h python3 train.py` runs `python3 train.py`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct


class _Wrapper(Struct, frozen=True):
    """The options of a wrapper that take a value, as the next word, and how many words come before the command."""

    values: str = ""
    long_values: str = ""
    operands: int = 0


# Those that stay as the parent of the command, and those that become the command: a person may name either.
_WRAPPERS: Final = {
    "chrt": _Wrapper("TPD", operands=1),
    "dumb-init": _Wrapper("r", "--rewrite"),
    "env": _Wrapper("uCS", "--unset --chdir --split-string"),
    "ionice": _Wrapper("cnpPu", "--class --classdata"),
    "nice": _Wrapper("n", "--adjustment"),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(),
    "stdbuf": _Wrapper("ioe", "--input --output --error"),
    "sudo": _Wrapper("CDghpRrTtUu", "--user --group --chdir --host --prompt"),
    "taskset": _Wrapper(operands=1),
    "time": _Wrapper("fo", "--format --output"),
    "timeout": _Wrapper("ks", "--kill-after --signal", operands=1),
    "tini": _Wrapper("pe"),
}
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def find_wrapped_command(name: str, words: Sequence[str]) -> Sequence[str] | None:
    """Find the command that the wrapper `name` runs, if it is one; `words` follow its name."""
    wrapper = _WRAPPERS.get(name)
    if wrapper is None:
        return None
    place = 0
    # An index: to take words off a list of 60,000, one by one, takes seconds.
    while place < len(words) and words[place].startswith("-"):
        word, place = words[place], place + 1
        if word == "--":
            break
        if word in wrapper.long_values.split() or (not word.startswith("--") and word[-1] in wrapper.values):
            place += 1
    if name in ("env", "sudo"):
        while place < len(words) and _ASSIGNMENT.fullmatch(words[place]):
            place += 1
    return words[place + wrapper.operands :] or None
