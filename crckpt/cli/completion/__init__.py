"""Complete what is typed in a shell: commands, options, and what an argument may be.

`crckpt.bash`, `crckpt.zsh` and `crckpt.fish` start crckpt with the words up to the cursor as its arguments, and with
`_CRCKPT_COMPLETE=bash_complete` (zsh_complete, fish_complete) in the environment. The first line of the answer is
`words`, `files` or `directories`; `words` are followed by a line each: the word, a tab, its description. With
`bash_source` crckpt prints the script itself: eval "$(_CRCKPT_COMPLETE=bash_source crckpt)".

Nothing here takes a lock, needs root, fails or takes long: a completion that is not there costs the user one word.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

VARIABLE: Final = "_CRCKPT_COMPLETE"
# The shell does not react until the answer is there.
_LIMIT_S: Final = 3.0


def answer(instruction: str, words: Sequence[str]) -> int:
    """Print the completions of the last of `words`, or the script of a shell. Return the exit status."""
    shell, _, action = instruction.partition("_")
    script = Path(__file__).with_name(f"crckpt.{shell}")
    if not shell.isalpha() or not script.exists():
        return 1
    if action == "source":
        sys.stdout.write(script.read_text())
        sys.stdout.flush()
        return 0
    # No message: the user is typing.
    with suppress(OSError):
        # bash gives the words as they were typed.
        sys.stdout.buffer.write(_complete_in_time(_unquote(words) if shell == "bash" else words))
        sys.stdout.flush()
    return 0


def _complete_in_time(words: Sequence[str]) -> bytes:
    """Complete the last of `words` in a child; return its answer, or nothing if it is not whole in time."""
    # Nothing ends a process that waits for a file system which does not answer. Then the shell must not wait for it.
    ends = time.monotonic() + _LIMIT_S
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _complete(words, writing)
    os.close(writing)
    answered = b""
    while select.select([reading], [], [], max(0, ends - time.monotonic()))[0]:
        part = os.read(reading, 1 << 20)
        if not part:
            return answered
        answered += part
    os.kill(child, signal.SIGKILL)
    return b""


def _complete(words: Sequence[str], writing: int) -> NoReturn:
    try:
        # The shell reads its pipe until nobody has it any more.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        from crckpt.cli.completion.complete import complete

        with os.fdopen(writing, "w") as pipe:
            pipe.write("".join(f"{line}\n" for line in complete(words)))
    finally:
        os._exit(0)


def _unquote(words: Sequence[str]) -> Sequence[str]:
    """Remove the quotes of bash, which gives the words as they were typed. Expand nothing."""
    import shlex

    try:
        return [" ".join(shlex.split(word)) for word in words]
    except ValueError:  # a quote is still open
        return words
