"""The command `crckpt`. `--version` is answered without importing what the commands need."""

from __future__ import annotations

import gc
import io
import os
import sys
from contextlib import suppress
from typing import NoReturn

from crckpt.errors import HostCannot, Interrupted

# What a command reads (ten thousand manifests) stays until it ends. To look through it again and again for garbage
# cycles, of which there are next to none, takes longer than the reading.
_ALLOCATIONS_BETWEEN_COLLECTIONS = 1_000_000
_WRITABLE_BY_NOBODY_ELSE = 0o022


def main() -> NoReturn:
    """Run the command line and exit."""
    # Every file of ours has its own mode. This is for what Python compiles, and for CRIU and what else we start.
    os.umask(os.umask(_WRITABLE_BY_NOBODY_ELSE) | _WRITABLE_BY_NOBODY_ELSE)
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    # numpy starts threads and takes memory for linear algebra, of which there is none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _open_standard_streams()
    code = _version() if sys.argv[1:] in (["--version"], ["-V"]) else _command()
    with suppress(OSError):
        sys.stderr.flush()
    # All is done and said. To take itself apart, object by object, takes Python longer than many a command.
    os._exit(code)


def _open_standard_streams() -> None:
    """Where whoever started us has closed one (`2>&-`), a file of the store would get its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal's encoding lacks is no reason to say nothing; of stderr Python itself sees to that.
        sys.stdout.reconfigure(errors="backslashreplace")


def _version() -> int:
    from crckpt.ops.version import version

    with suppress(BrokenPipeError):
        sys.stdout.write(version() + "\n")
        sys.stdout.flush()
    return 0


def _command() -> int:
    from crckpt.cli import command_in
    from crckpt.host.cold_start import read_ahead
    from crckpt.host.process.address_space import is_out_of_memory, refuse_large_imports
    from crckpt.host.process.signals import interruptible, interrupts_put_off

    # Before the imports that take their time: an interruption always ends in a sentence.
    interruptible()
    refuse_large_imports()
    try:
        # Amid an import it might be swallowed there: some modules try for others, whatever that raises.
        with interrupts_put_off():
            read_ahead(command_in(sys.argv[1:]))
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
