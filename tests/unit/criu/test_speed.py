"""How long CRIU took for each process, as its log tells it."""

from __future__ import annotations

from crckpt.criu.speed import task_times

LOG = """\
(00.028941) Dumping processes (pid: 25178 comm: python)
(00.031500) Dumping task (pid: 25178 comm: python)
(00.033551) Dumping general registers for 25178 in native mode
(00.038725) Dumping task (pid: 25179 comm: Dumping task (pid: 1)
(00.038728) Error (criu/x.c:1): Dumping task (pid: 7 comm: no)
(00.046725) Dumping file-locks
(00.066302) Dumping pstree (pid: 25178)
(00.066756) Dumping finished successfully
"""


def test_each_process_takes_until_the_next_begins() -> None:
    times = {pid: round(spent, 3) for pid, spent in task_times(LOG).items() if pid != 25178}
    assert times == {25179: 8.0}
    assert task_times(LOG)[25178] > 7


def test_a_log_without_times_tells_nothing() -> None:
    assert task_times("Dumping task (pid: 1 comm: a)\n") == {}
