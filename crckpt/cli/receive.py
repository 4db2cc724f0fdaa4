"""`crckpt receive`: the other side of `crckpt migrate`, started by ssh."""

from __future__ import annotations

import sys

from crckpt.cli import options
from crckpt.errors import UsageError
from crckpt.ops.context import Context


def receive() -> None:
    """Receive a process that `crckpt migrate` moves here. `crckpt migrate` starts this over ssh.

    It speaks with the other crckpt over its standard input and output: it is of no use at a prompt.
    """
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise UsageError(
            "crckpt receive is started by crckpt migrate, over ssh",
            hint="on the host that has the process: crckpt migrate TARGET HOST",
        )

    from crckpt.migrate.session import serve

    def make_context() -> Context:
        options.require_root("to receive a process")
        return options.make_context()

    serve(make_context)
