"""A shell with one job on the terminal of its stdin: it reports the state of the job, and obeys commands.

The job is a process that runs `wait_for_job` for PROGRAM, a child in a group of its own. Run with PROGRAM and two
descriptors: a line from the first, `fg`, continues the job; those to the second are `started PID`, `stopped` and
`exited STATUS`.
"""

import os
import signal
import sys
import time
from contextlib import suppress

from crckpt.host.proc import identify
from crckpt.host.process.job_control import Job, wait_for_job

PROGRAM, TOLD, SAYING = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def run_job() -> None:
    """Start the program, say its PID, and end as it ends."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.execv("/bin/sh", ["sh", "-c", PROGRAM])  # noqa: S606
    with suppress(PermissionError):  # it has done so itself, and runs
        os.setpgid(child, child)
    say(f"started {child}")
    status = wait_for_job(Job(child, child, identify(child)))
    os._exit(os.waitstatus_to_exitcode(status))


def say(line: str) -> None:
    os.write(SAYING, f"{line}\n".encode())


def main() -> None:
    """Start the job in the foreground, and watch it."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.setpgid(0, 0)
        while os.tcgetpgrp(0) != os.getpgrp():
            time.sleep(0.001)
        run_job()
    os.setpgid(job, job)
    os.tcsetpgrp(0, job)
    commands = os.fdopen(TOLD)
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            say(f"exited {os.waitstatus_to_exitcode(status)}")
            return
        os.tcsetpgrp(0, os.getpgrp())
        say("stopped")
        if commands.readline() != "fg\n":
            return
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)


main()
