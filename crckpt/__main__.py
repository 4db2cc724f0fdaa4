"""Run the command `crckpt`. `--version` imports nothing that only the commands need."""

from __future__ import annotations

import gc
import io
import os
import sys
from contextlib import suppress
from typing import NoReturn

from crckpt.errors import HostCannot, Interrupted

# A command keeps what it reads (ten thousand manifests) until it ends, and makes hardly any garbage cycles. The garbage
# collector's searches for them would take longer than the reading: a list of 10,000 checkpoints takes 1.2 s, and 2.0 s
# with Python's threshold (2 busy cores; `scripts/bench many` bounds it).
_ALLOCATIONS_BETWEEN_COLLECTIONS = 1_000_000
_WRITABLE_BY_NOBODY_ELSE = 0o022


def main() -> NoReturn:
    """Run the command line and exit."""
    # For files that Python compiles, and for CRIU and other children. crckpt sets the mode of each of its own files.
    os.umask(os.umask(_WRITABLE_BY_NOBODY_ELSE) | _WRITABLE_BY_NOBODY_ELSE)
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    # crckpt does no linear algebra: numpy needs no threads for it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _open_standard_streams()
    if completing := os.environ.pop("_CRCKPT_COMPLETE", ""):
        from crckpt.cli.completion import answer

        os._exit(answer(completing, sys.argv[1:]))
    code = _version() if sys.argv[1:] in (["--version"], ["-V"]) else _command()
    with suppress(OSError):
        sys.stderr.flush()
    # Python's own clean-up, object by object, takes longer than many a command.
    os._exit(code)


def _open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream (`2>&-`): a file of the store must not get its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks must not stop the output. For stderr Python does this itself.
        sys.stdout.reconfigure(errors="backslashreplace")


def _version() -> int:
    from crckpt.ops.version import version

    with suppress(BrokenPipeError):
        sys.stdout.write(version() + "\n")
        sys.stdout.flush()
    return 0


def _command() -> int:
    from crckpt.cli import find_command
    from crckpt.host.cold_start import read_ahead
    from crckpt.host.process.own_limits import is_out_of_memory, lift_limits, refuse_large_imports
    from crckpt.host.process.signals import handle_interrupts, interrupts_deferred

    # Before the slow imports: an interruption always ends with a message.
    handle_interrupts()
    refuse_large_imports()
    lift_limits()
    try:
        # An import might swallow the interruption: some modules catch everything while they try to import others.
        with interrupts_deferred():
            read_ahead(find_command(sys.argv[1:]))
            from crckpt.cli.app import run

        return run(sys.argv[1:])
    except Interrupted as error:
        with suppress(OSError):
            sys.stderr.write(f"crckpt: {error.message}\n")
        return error.exit_code
    except (ImportError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        with suppress(OSError):
            sys.stderr.write("crckpt: the host has too little memory to start crckpt\n")
        return HostCannot.exit_code


if __name__ == "__main__":
    main()
