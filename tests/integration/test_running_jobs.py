"""A running job is found by its name, its pidfile and a second restore, wherever it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from command import Crckpt
from stopped_trees import BY_NAME, JOB, detached_in_namespace, taken
from trees import PYTHON, Case, Tree, runs, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

ENDED = 14
REFUSED = 24
WITHIN_S = 60
PROGRAM_OF_A_SHELL = Case("of a shell", ("sh", "-c", f"{PYTHON} {{programs}}/counter.py {{workdir}} & wait"))


@contextmanager
def job_of_a_shell(crckpt: Crckpt, pidfile: Path) -> Iterator[tuple[Tree, int]]:
    """A program in the session of its shell, checkpointed by its pidfile and ended; with its PID."""
    with started(PROGRAM_OF_A_SHELL) as tree:
        (program,) = psutil.Process(tree.pid).children()
        pidfile.write_text(str(program.pid))
        crckpt.run("dump", f"pidfile:{pidfile}", JOB, "--stop")
        tree.wait_gone()
        yield tree, program.pid


def test_program_in_a_pid_namespace_is_found_by_its_job(crckpt: Crckpt, tmp_path: Path) -> None:
    """The old PID was in use. The program is found by its job, pidfile and PID, and by the PIDs of its helpers."""
    pidfile, newer = tmp_path / "pid", tmp_path / "newer"
    with job_of_a_shell(crckpt, pidfile) as (tree, pid):
        before = tree.counters()
        with taken(pid, "PID"):
            newer.write_text(str(pid))
            with detached_in_namespace(crckpt) as init:
                tree.wait_growth(before)
                (root,) = psutil.Process(init).children()
                helpers = (str(init), str(psutil.Process(init).ppid()))
                for target in (JOB, f"pidfile:{pidfile}", str(root.pid), *helpers):
                    assert crckpt.run("dump", target, JOB, "--json").document["result"]["pid"] == root.pid
                # The process that has this PID on the host may have written the newer pidfile.
                assert crckpt.run("doctor", f"pidfile:{newer}", status=REFUSED).out.startswith(f"PID {pid} cannot")
                for words in ((), ("--new-pid-namespace",)):
                    result = crckpt.run("restore", JOB, "--detach", *words, status=REFUSED)
                    assert (
                        f"{JOB} is already running, as PID {root.pid}: a restore would start a second copy"
                        in result.err
                    )
                tree.wait_growth(tree.counters())
                counted = tree.counters()
                crckpt.run("dump", f"pidfile:{pidfile}", JOB, "--stop")
                wait_for(lambda: not runs(init), WITHIN_S, "the namespace to end")
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(counted)
        psutil.Process(pid).kill()


def test_pidfile_with_the_old_pid_finds_the_program_in_its_pid_namespace(crckpt: Crckpt, tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    with job_of_a_shell(crckpt, pidfile) as (tree, pid), detached_in_namespace(crckpt):
        tree.wait_growth(tree.counters())
        assert crckpt.run("dump", f"pidfile:{pidfile}", JOB, "--json").document["result"]["pid"] != pid
    assert "the pidfile" in crckpt.run("dump", f"pidfile:{pidfile}", JOB, status=ENDED).err


def test_restore_into_a_pid_namespace_prints_the_pid_on_the_host(crckpt: Crckpt, tmp_path: Path) -> None:
    with job_of_a_shell(crckpt, tmp_path / "pid") as (tree, pid):
        output = crckpt.run("restore", JOB, "--detach", "--new-pid-namespace").out
        tree.wait_growth(tree.counters())
        (root,) = (process for process in psutil.process_iter(["cmdline"]) if str(tree.workdir) in _last_word(process))
        assert f"as PID {root.pid} (PID {pid} in its namespace) in " in output
        root.kill()


def _last_word(process: psutil.Process) -> str:
    return str((process.info["cmdline"] or [""])[-1])


def test_dump_by_job_name_finds_the_running_program(crckpt: Crckpt) -> None:
    """Once the program has ended, the message suggests a restore."""
    with started(BY_NAME["counter"]) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        for words in (("dump", JOB, "--json"), ("doctor", JOB, "--json"), ("pre-dump", JOB, "--json")):
            result = crckpt.run(*words).document["result"]
            assert (result["pid"], result.get("job", JOB)) == (tree.pid, JOB)
        refused = crckpt.run("restore", f"{JOB}~1", "--detach", status=REFUSED)
        assert f"{JOB} is already running, as PID {tree.pid}" in refused.err
        tree.wait_growth(tree.counters())
    error = crckpt.run("dump", JOB, status=ENDED).err
    assert f"no program of the job {JOB} that runs here\n  hint: restore it: crckpt restore {JOB}" in error
