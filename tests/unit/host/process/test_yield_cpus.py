"""Work that leaves processes the cores that they run on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from unittest.mock import patch

import pytest
from target_processes import state, wait_for

from crckpt.host.process.own_limits import cores_left_to

OUR_CPUS = os.sched_getaffinity(0)

_SPIN = "print(flush=True)\nwhile True: pass"
_SLEEP = "import signal; print(flush=True); signal.pause()"

pytestmark = pytest.mark.skipif(len(OUR_CPUS) < 2, reason="there is one core")


@contextmanager
def running(program: str, core: int, in_state: str) -> Iterator[int]:
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    # The program chooses its CPU itself. A sleeping program would move to another CPU only when it wakes up.
    code = f"import os; os.sched_setaffinity(0, [{core}])\n{program}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=null, stdout=pipe, start_new_session=True) as process:
        try:
            assert process.stdout
            process.stdout.readline()  # it has started
            wait_for(lambda: state(process.pid) == in_state and on(process.pid) == core, "it to be there")
            yield process.pid
        finally:
            process.kill()


def on(pid: int) -> int:
    """The core that the process last ran on."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])


def seen_by_a_thread() -> set[int]:
    seen: list[set[int]] = []
    thread = Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    return seen[0]


def test_crckpt_does_not_use_the_cpu_on_which_a_program_runs() -> None:
    core = min(OUR_CPUS)
    with running(_SPIN, core, "R") as pid:
        with cores_left_to([pid]):
            assert os.sched_getaffinity(0) == seen_by_a_thread() == OUR_CPUS - {core}
        assert os.sched_getaffinity(0) == OUR_CPUS


def test_crckpt_uses_all_cpus_if_the_program_sleeps() -> None:
    with running(_SLEEP, min(OUR_CPUS), "S") as pid, cores_left_to([pid]):
        assert os.sched_getaffinity(0) == OUR_CPUS


def test_crckpt_uses_at_least_half_of_its_cpus() -> None:
    first, second = sorted(OUR_CPUS)[:2]
    with running(_SPIN, first, "R") as one, running(_SPIN, second, "R") as other, cores_left_to([one, other]):
        kept = os.sched_getaffinity(0)
        assert kept == (OUR_CPUS - {first, second} if len(OUR_CPUS) >= 4 else OUR_CPUS)


def test_crckpt_uses_all_cpus_if_the_program_has_ended() -> None:
    with running(_SPIN, min(OUR_CPUS), "R") as pid:
        pass
    with cores_left_to([pid]):
        assert os.sched_getaffinity(0) == OUR_CPUS


def test_interruption_gives_crckpt_all_its_cpus_again() -> None:
    with running(_SPIN, min(OUR_CPUS), "R") as pid, pytest.raises(KeyboardInterrupt), cores_left_to([pid]):
        raise KeyboardInterrupt
    assert os.sched_getaffinity(0) == OUR_CPUS


def test_crckpt_uses_all_cpus_if_it_may_not_read_where_the_program_runs() -> None:
    def refused(_: object) -> set[int]:
        raise PermissionError

    with patch("crckpt.host.proc.cores_in_use", refused), cores_left_to([os.getpid()]):
        assert os.sched_getaffinity(0) == OUR_CPUS
