"""Complete what is typed in a shell: commands, options, and what an argument may be.

`crckpt.bash`, `crckpt.zsh` and `crckpt.fish` start crckpt with the words up to the cursor as its arguments, and with
`_CRCKPT_COMPLETE=bash_complete` (zsh_complete, fish_complete) in the environment. The first line of the answer is
`words`, `files` or `directories`; `words` are followed by a line each: the word, a tab, its description. With
`bash_source` crckpt prints the script itself: eval "$(_CRCKPT_COMPLETE=bash_source crckpt)".

Nothing here takes a lock, needs root, fails or takes long: a completion that is not there costs the user one word.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

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
    # The user is typing: no message, and no waiting for a disk that does not answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        from crckpt.cli.completion.complete import complete

        # All of them first: an alarm while they are printed would leave half an answer.
        lines = list(complete(words))
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except Exception:
        return 0
    return 0
