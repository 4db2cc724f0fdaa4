"""Pipes and named pipes. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

PIPES = (
    Cause(
        "outside-pipe",
        "fd {fd} of PID {pid} is a pipe to a process outside the tree; after a restore it leads to the output of "
        "crckpt restore, or to /dev/null with --detach",
        "",
    ),
    Cause(
        "outside-pipe-read",
        "fd {fd} of PID {pid} is a pipe from a process outside the tree; after a restore the program reads the bytes "
        "that the pipe holds now, then end of file",
        "",
    ),
    Cause(
        "output-socket",
        "the tree writes to crckpt's output, which is a socket, and CRIU cannot pass a socket on",
        "use a pipe: crckpt restore REF 2>&1 | cat; or a file: crckpt restore REF > FILE 2>&1; or --detach",
    ),
    Cause(
        "packet-pipe",
        "the tree has a pipe in packet mode (O_DIRECT)",
        "open it without O_DIRECT in the program",
        "packetized mode for pipes is not supported",
        "criu/pipes.c",
    ),
    Cause(
        "pipes-too-many",
        "the tree reads {count|more than 1024} {what|pipes}, and CRIU saves at most 1024",
        "dump a part of the tree, or close some in the program",
        # Not memory: CRIU has a table of NR_PIPES_WITH_DATA, in which empty pipes count, too (criu/pipes.c:415).
        r"OOM storing pipe",
        "criu/pipes.c",
    ),
    Cause(
        "pipe-size",
        "a pipe of the tree cannot get its old size",
        "raise the limits: sysctl -w fs.pipe-max-size=16777216 fs.pipe-user-pages-soft=0",
        "Can't restore pipe size|Unable to set a pipe size",
        "criu/pipes.c",
    ),
    Cause(
        "pipe-data",
        "the unread data in a pipe of the tree cannot be saved or restored",
        "wait until the program has emptied the pipe, then try again",
        "Can't obtain piped data size|Can't (?:pick|push) pipe data|Error splicing data"
        r"|Wanted to restore \d+ bytes",
        "criu/pipes.c",
    ),
    Cause(
        "fifo",
        "named pipe /{path} cannot be opened",
        "create it again: mkfifo /{path}",
        r"Can't open (?:fake )?fifo \S+ \[/?(?P<path>.*)\]",
        "criu/fifo.c",
    ),
)
