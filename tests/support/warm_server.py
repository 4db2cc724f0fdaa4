"""Fork commands of crckpt that have their modules loaded: `warm_server.py SOCKET`, which `warm_start` starts and asks.

Loading them takes longer than most commands run, and tests start thousands of commands.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pkgutil
import select
import socket
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import typer
from warm_start import LARGEST_REQUEST, EndedAnswer, Request, StartedAnswer

import crckpt
from crckpt import __main__ as command
from crckpt.cli import app
from crckpt.host import cold_start

_DESCRIPTORS: Final = 1024
"""More than this process has open."""


def main() -> None:
    """Load all commands, and fork one for each request until the tests have ended."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    Path("/proc/self/comm").write_text("crckpt")
    _import_all()
    _make_parsers()
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready in running:
                pid, answers = running.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                _, status = os.waitpid(pid, 0)
                with answers:
                    answers.send(msgspec.json.encode(EndedAnswer(os.waitstatus_to_exitcode(status))))
                continue
            data, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
            if not data:
                return
            pid = os.fork()
            if not pid:
                _run(msgspec.json.decode(data, type=Request), descriptors)
            *standard, answers_number = descriptors
            for number in standard:
                os.close(number)
            answers = socket.socket(fileno=answers_number)
            answers.send(msgspec.json.encode(StartedAnswer(pid)))
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, answers
            poll.register(pidfd, select.POLLIN)


def _import_all() -> None:
    """Import all modules of crckpt, also those that commands import late, and what these import later still."""
    # It would start a thread for each core, and a command of ours has only the thread that forks it.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in pkgutil.walk_packages(crckpt.__path__, "crckpt."):
        # The libraries that CRIU loads look like modules of Python.
        if not module.name.startswith("crckpt.tracking.preload.") and not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    for name in ("concurrent.futures.thread", "encodings.unicode_escape", "numpy", "typer._click.decorators"):
        importlib.import_module(name)


def _make_parsers() -> None:
    """Make the parsers of all commands once. None notes which modules it has loaded: here these are all."""
    app.make_app = functools.cache(app.make_app)
    typer.main.get_command = functools.cache(typer.main.get_command)
    cold_start.note = _note_nothing
    for name in app.COMMANDS:
        typer.main.get_command(app.make_app(name))


def _note_nothing(command: str, place: Path = cold_start.PLACE, *, may_write: bool = False) -> None:
    """See cold_start.note."""


def _run(request: Request, descriptors: list[int]) -> NoReturn:
    try:
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        os.closerange(3, _DESCRIPTORS)
        # As Python opens them when it starts. ruff: they stay open.
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace")
        os.chdir(request.directory)
        os.environ.clear()
        os.environ.update(request.environment)
        sys.argv = request.words
        command.main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(70)


if __name__ == "__main__":
    main()
