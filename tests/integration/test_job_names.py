"""Programs that an interpreter runs have jobs of their own, and no job mixes programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from command import Crckpt
from dump_moments import ENDS_WITHIN_S
from trees import PYTHON, runs, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

REFUSED = 24
WAITING_SCRIPT = "import signal\nprint('ready', flush=True)\nsignal.pause()\n"


@contextmanager
def running(directory: Path, *words: str) -> Iterator[int]:
    """The PID of a program in its own session that is ready; it is ended afterwards."""
    null, output = subprocess.DEVNULL, directory / "output"
    output.unlink(missing_ok=True)
    with output.open("wb") as file:
        process = subprocess.Popen(words, stdin=null, stdout=file, stderr=null, cwd=directory, start_new_session=True)
    try:
        wait_for(lambda: output.read_bytes() == b"ready\n", ENDS_WITHIN_S, "the program")
        yield process.pid
    finally:
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(process.pid).children(recursive=True)
            for each in (process.pid, *(child.pid for child in below)):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        # A restored program is the child of this process again, or of none.
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)
        process.poll()


def script(directory: Path, name: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(WAITING_SCRIPT)
    return path


def dump(crckpt: Crckpt, pid: int, *words: str) -> str:
    """The job of the checkpoint."""
    job = crckpt.run("dump", str(pid), *words, "--json").document["result"]["job"]
    assert isinstance(job, str)
    return job


def test_two_python_scripts_get_different_job_names(crckpt: Crckpt, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for name in ("train.py", "evaluate.py"):
            script(tmp_path / name[:-3], name)
            pid = stack.enter_context(running(tmp_path / name[:-3], PYTHON, name))
            assert dump(crckpt, pid) == name[:-3]


def test_second_process_of_a_script_is_dumped_into_the_same_job_with_a_warning(crckpt: Crckpt, tmp_path: Path) -> None:
    """Otherwise `restore JOB` would restore one of two workers without a warning."""
    words = "brings back only the process that was dumped last"
    (tmp_path / "second").mkdir()
    path = str(script(tmp_path / "first", "train.py"))
    with running(tmp_path / "first", PYTHON, path) as first, running(tmp_path / "second", PYTHON, path) as second:
        for pid, shared in ((first, False), (first, False), (second, True), (first, True)):
            assert (words in crckpt.run("dump", str(pid), "--dry-run").out) == shared
            assert (words in crckpt.run("dump", str(pid)).out) == shared
        # The second is no restart of the first, which has ended.
        crckpt.run("dump", str(first), "--stop")
        assert words in crckpt.run("dump", str(second), "--stop").out
        os.waitpid(second, 0)
        crckpt.run("restore", "train", "--detach")
        assert words not in crckpt.run("dump", str(second)).out


def test_command_started_by_a_wrapper_has_the_job_name_of_the_command(crckpt: Crckpt, tmp_path: Path) -> None:
    script(tmp_path, "train.py")
    with running(tmp_path, "timeout", "1h", PYTHON, "train.py") as pid:
        assert dump(crckpt, pid) == "train"
        (child,) = psutil.Process(pid).children()
        assert dump(crckpt, child.pid) == "train"


def test_restore_command_printed_by_a_dump_restores_that_dump(crckpt: Crckpt, tmp_path: Path) -> None:
    """The command still works after another dump into the job."""
    one, other = script(tmp_path / "one", "train.py"), script(tmp_path / "other", "train.py")
    with running(one.parent, PYTHON, one.name) as first, running(other.parent, PYTHON, other.name) as second:
        output = crckpt.run("dump", str(first), "--stop").out
        wait_for(lambda: not runs(first), ENDS_WITHIN_S, "the program to end")
        with suppress(ChildProcessError):
            os.waitpid(first, 0)
        dump(crckpt, second, "train", "--job-of-another-program")
        found = re.search(r"bring it back with: crckpt (restore [0-9a-f]{12})\n", output)
        assert found is not None
        crckpt.run(*found[1].split(), "--detach")
        assert psutil.Process(first).cwd() == str(one.parent)


@pytest.mark.parametrize("job", [(), ("train",)], ids=["default", "named"])
@pytest.mark.parametrize("command", ["dump", "pre-dump"])
def test_dump_of_another_script_into_a_job_is_refused(
    crckpt: Crckpt, tmp_path: Path, command: str, job: tuple[str, ...]
) -> None:
    one, other = script(tmp_path / "one", "train.py"), script(tmp_path / "other", "train.py")
    with running(one.parent, PYTHON, one.name) as pid:
        dump(crckpt, pid)
    with running(other.parent, PYTHON, other.name) as pid:
        error = crckpt.run(command, str(pid), *job, status=REFUSED).err
        assert f"is of {one}, but PID {pid} runs {other}" in error
        assert f"hint: choose another name: crckpt {command} {pid} NAME" in error
        assert f"crckpt {command} {pid} train --job-of-another-program" in error
        if command == "dump":
            crckpt.run("dump", str(pid), *job, "--dry-run", status=REFUSED)
            assert dump(crckpt, pid, "train", "--job-of-another-program") == "train"
            # The last checkpoint is of this program now.
            assert dump(crckpt, pid, *job) == "train"
        assert runs(pid)


def test_restarted_program_can_be_dumped_into_its_job_again(crckpt: Crckpt, tmp_path: Path) -> None:
    """A timer may dump a service into a job of a fixed name."""
    script(tmp_path, "train.py")
    jobs = []
    for words in (("train.py",), (str(tmp_path / "train.py"), "--again")):
        with running(tmp_path, PYTHON, *words) as pid:
            jobs.append(dump(crckpt, pid, "nightly"))
    assert jobs == ["nightly"] * 2


def test_upgraded_program_can_be_dumped_into_its_job_again(crckpt: Crckpt, tmp_path: Path) -> None:
    executable = tmp_path / "server"
    for _ in range(2):
        # As a package manager does it: another file under the same name.
        (tmp_path / "new").write_bytes(Path("/bin/sleep").read_bytes())
        (tmp_path / "new").chmod(0o755)
        (tmp_path / "new").replace(executable)
        with subprocess.Popen(
            [executable, "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        ) as process:
            wait_for(lambda: psutil.Process(process.pid).exe() == str(executable), ENDS_WITHIN_S, "the program")
            assert dump(crckpt, process.pid) == "server"
            process.kill()


def test_imported_checkpoint_names_its_executable(crckpt: Crckpt, tmp_path: Path) -> None:
    """A checkpoint of an older version also names its executable in the images."""
    images = tmp_path / "images"
    script(tmp_path, "train.py")
    with running(tmp_path, PYTHON, "train.py") as pid:
        dump(crckpt, pid)
        crckpt.run("export", "train", str(images))
        crckpt.run("import", str(images), "old")
        assert dump(crckpt, pid, "old") == "old"
        crckpt.run("import", str(images), "older")
    (tmp_path / "wait.sh").write_text("echo ready\nwhile :; do sleep 1000; done\n")
    with running(tmp_path, "sh", "wait.sh") as pid:
        error = crckpt.run("dump", str(pid), "older", status=REFUSED).err
        assert f"but PID {pid} runs {tmp_path}/wait.sh" in error


def test_program_that_changed_its_directory_can_be_dumped_into_its_job_again(crckpt: Crckpt, tmp_path: Path) -> None:
    """The relative path of its script seems to be in the new directory."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "train.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.chdir('elsewhere'))\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    time.sleep(0.05)\n"  # `pause` would miss a signal that comes just before it
    )
    with running(tmp_path, PYTHON, "train.py") as pid:
        dump(crckpt, pid, "nightly")
        os.kill(pid, signal.SIGUSR1)
        wait_for(lambda: psutil.Process(pid).cwd() == str(elsewhere), ENDS_WITHIN_S, "the program to go there")
        dump(crckpt, pid, "nightly")
