"""A tree that is restored after SIGKILL: its files have grown since the checkpoint."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped_trees import JOB, ObstructedCriu, foreground, program, staging, stopped
from trees import READY_S, Case, Part, Tree, open_workdir, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

REFUSED: Final = 24
FAILED: Final = 23
GROWN_BY: Final = 200  # bytes
FAMILY: Final = {"root": "append", "leader": "plain", "elder": "append", "younger": "plain", "other": "plain"}
REDIS: Final = Case(
    "redis-aof",
    (
        *("redis-server", "--port", "0", "--unixsocket", "{workdir}/redis.sock", "--dir", "{workdir}"),
        *("--save", "", "--appendonly", "yes"),
    ),
    needs=("redis-server", "redis-cli"),
    observe=lambda workdir: {"": Part(0, _counter(workdir), True, "", True, True, {})},
    settle=lambda workdir: _count_on(workdir),
)


def test_log_opened_for_appending_is_cut_back(crckpt: Crckpt) -> None:
    """The program continues with the log as at the checkpoint; the later lines are kept next to the log."""
    with _crashed(crckpt, program("journal", "append"), "journal.log") as tree:
        log = tree.workdir / "journal.log"
        content = log.read_bytes()
        size = _reported_size(crckpt, log, "--grown rewind", "--grown keep", "append only")
        result = crckpt.run("restore", JOB, "--detach", "--grown", "rewind")
        kept = _kept(log, _newest(crckpt))
        (note,) = (line for line in result.out.splitlines() if str(log) in line)
        assert note.startswith(f"note: {log} grew from {size} to {len(content)} bytes")
        assert note.endswith(f" and is cut back: what is cut off is kept in {kept}")
        assert kept.read_bytes() == content[size:]
        _goes_on(tree)
        assert _agrees(tree)
        assert _is_consecutive(log, "line")


@pytest.mark.parametrize("seconds", [253402300900, 2**40, -(2**35)])
def test_file_with_an_extreme_timestamp_is_restored(crckpt: Crckpt, seconds: int) -> None:
    """Any user can set such a time, if the file system stores it."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        words = ("/usr/bin/python3", "-c", f"import time; file = open({file.name!r}); time.sleep(600)")
        null = subprocess.DEVNULL
        process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
        try:
            opened = Path(f"/proc/{process.pid}/fd/3")
            wait_for(lambda: os.path.lexists(opened), READY_S, "the file to be open")
            os.utime(file.name, (seconds, seconds))
            if Path(file.name).stat().st_mtime != seconds:
                pytest.skip("this file system keeps no such time")
            crckpt.run("dump", str(process.pid), JOB, "--stop")
            process.wait(60)
            os.utime(file.name, (seconds, seconds))
            crckpt.run("restore", JOB, "--detach")
            assert opened.readlink() == Path(file.name)
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()


def test_log_opened_for_appending_can_be_kept(crckpt: Crckpt) -> None:
    """The program continues after the newer lines, and writes the lines again that it had written since the dump."""
    with _crashed(crckpt, program("journal", "append"), "journal.log") as tree:
        log = tree.workdir / "journal.log"
        content = log.read_bytes()
        size = _reported_size(crckpt, log)
        result = crckpt.run("restore", JOB, "--detach", "--grown", "keep")
        assert f"{log} grew from {size} to {len(content)} bytes" in result.out
        assert "stays as it is" in result.out
        _goes_on(tree)
        now = log.read_bytes()
        assert now.startswith(content)
        last = int(content[:size].splitlines()[-1].split()[1])
        assert now.removeprefix(content).startswith(f"line {last + 1}\nline {last + 2}\n".encode())
        assert not _kept(log, _newest(crckpt)).exists()


def _truncate(log: Path) -> None:
    os.truncate(log, 0)


def _rotate(log: Path) -> None:
    log.rename(log.with_suffix(".1"))
    log.write_text("the first line of the new log\n")
    log.chmod(0o600)


def _rotate_to_longer(log: Path) -> None:
    _rotate(log)
    log.write_text("a line of the new log\n" * (log.with_suffix(".1").stat().st_size // 10))


def _rotate_in_place(log: Path) -> None:
    """Truncate the log as the option `copytruncate` of logrotate does, before other programs write to it."""
    log.write_text("a line of the new log\n" * (log.stat().st_size // 10))


@pytest.mark.parametrize("kind", ["append", "read"])
@pytest.mark.parametrize("rotate", [_truncate, _rotate, _rotate_to_longer, _rotate_in_place])
def test_rotated_log_is_left_alone(crckpt: Crckpt, kind: str, rotate: Callable[[Path], None]) -> None:
    """The program appends to the log that has the name now, whatever its size. The rotated log is not cut."""
    with stopped(crckpt, program("journal", kind)) as tree:
        log = tree.workdir / "journal.log"
        rotate(log)
        content, before = log.read_bytes(), tree.counters()
        for words in ((), ("--grown", "rewind")):
            output = _refused(crckpt, *words)
            assert f"{log} is no longer the log of the checkpoint" in output
            assert "hint: --grown keep lets the program append to it" in output
        output = crckpt.run("restore", JOB, "--detach", "--grown", "keep").out
        assert f"note: {log} is no longer the log of the checkpoint" in output
        tree.wait_growth(before)
        assert log.read_bytes().startswith(content)
        first = log.read_bytes()[len(content) :].decode().splitlines()[0]
        # The program may have written a line just before the dump, and counted it only after that.
        assert first in {f"line {before[''] + more}" for more in (1, 2)}


def test_output_file_that_became_shorter_is_restored_after_truncate_to_its_recorded_size(crckpt: Crckpt) -> None:
    """With `program >log`, the program would otherwise write after the end of the file."""
    with stopped(crckpt, program("journal", "plain")) as tree:
        log, before = tree.workdir / "journal.log", tree.counters()
        size = log.stat().st_size
        _truncate(log)
        (remedy,) = re.findall(r"truncate --size [^;]*", _refused(crckpt))
        subprocess.run(["sh", "-c", remedy], check=True)
        assert log.stat().st_size == size
        crckpt.run("restore", JOB, "--detach", "--written", "keep")
        tree.wait_growth(before)


def test_log_not_opened_for_appending_is_cut_back(crckpt: Crckpt) -> None:
    """CRIU would refuse the longer file. The new lines cannot be kept: the program would overwrite them."""
    with _crashed(crckpt, program("journal", "plain"), "journal.log") as tree:
        log = tree.workdir / "journal.log"
        content = log.read_bytes()
        size = _reported_size(crckpt, log, "--grown rewind")
        assert "--grown keep appends" not in _refused(crckpt)
        assert f"{log} grew" in _refused(crckpt, "--grown", "keep")
        assert log.read_bytes() == content
        crckpt.run("restore", JOB, "--detach", "--grown", "rewind")
        assert _kept(log, _newest(crckpt)).read_bytes() == content[size:]
        _goes_on(tree)
        assert _agrees(tree)
        assert _is_consecutive(log, "line")


def test_log_with_two_appending_writers_is_cut_back(crckpt: Crckpt) -> None:
    """The log is cut back to what both programs had written."""
    with _crashed(crckpt, program("journal", "twins"), "journal.log") as tree:
        log = tree.workdir / "journal.log"
        crckpt.run("restore", JOB, "--detach", "--grown", "rewind")
        _goes_on(tree)
        assert _is_consecutive(log, "root")
        assert _is_consecutive(log, "twin")


def test_log_truncated_under_one_of_two_writers_is_restored(crckpt: Crckpt, tmp_path: Path) -> None:
    """The position of the writer that wrote nothing after the truncation is past the end of the file."""
    log = tmp_path / "log"
    os.mkfifo(tmp_path / "fifo")
    words = ["sh", "-c", "exec 3>>log 4>>log; printf %01000d 0 >&3; : >log; echo line >&4; read never <>fifo"]
    null = subprocess.DEVNULL
    with subprocess.Popen(words, cwd=tmp_path, stdin=null, stdout=null, stderr=null, start_new_session=True) as shell:
        wait_for(lambda: log.exists() and log.read_text() == "line\n", READY_S, "the log to be truncated")
        crckpt.run("dump", str(shell.pid), JOB, "--stop")
    crckpt.run("restore", JOB, "--detach")
    os.kill(shell.pid, signal.SIGKILL)
    os.waitpid(shell.pid, 0)


def test_five_logs_of_one_tree_are_reported_and_cut_back(crckpt: Crckpt) -> None:
    """Each log is reported with its remedies, and all five are cut back."""
    with _crashed(crckpt, program("family", "--logs"), *(f"{name}.log" for name in FAMILY)) as tree:
        output = _refused(crckpt)
        for name, kind in FAMILY.items():
            lines = output.splitlines()
            (at,) = (at for at, line in enumerate(lines) if f"  - {tree.workdir / name}.log grew" in line)
            # The remedy is on the same line, or below all lines that have the same remedy.
            remedy = next(line for line in lines[at:] if "--grown rewind" in line)
            assert ("--grown keep appends" in remedy) == (kind == "append")
        kept = _refused(crckpt, "--grown", "keep")
        assert {name for name in FAMILY if f"/{name}.log" in kept} == {"leader", "younger", "other"}
        crckpt.run("restore", JOB, "--detach", "--grown", "rewind")
        _goes_on(tree)
        for name in FAMILY:
            assert _is_consecutive(tree.workdir / f"{name}.log", "line")
            assert _kept(tree.workdir / f"{name}.log", _newest(crckpt)).exists()


@pytest.mark.skipif(bool(REDIS.missing()), reason=f"not installed: {REDIS.missing()}")
def test_restored_redis_has_the_keys_of_its_append_only_file(crckpt: Crckpt) -> None:
    """After the restore, another redis that reads the file finds the same keys."""
    with started(REDIS) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        counted = _counter(tree.workdir)
        (log,) = (tree.workdir / "appendonlydir").glob("*.incr.aof")
        _count_on(tree.workdir)
        content = log.read_bytes()
        tree.end()
        tree.wait_gone()
        size = _reported_size(crckpt, log, "--grown rewind", "--grown keep", "redis-server")
        crckpt.run("restore", JOB, "--detach", "--grown", "rewind")
        assert _kept(log, _newest(crckpt)).read_bytes() == content[size:]
        assert _counter(tree.workdir) == counted
        _ask(tree.workdir, "INCR", "counter")
        with _reader(tree) as other:
            # The second redis counts on by 100 to show that it is ready.
            assert _counter(other.workdir) == counted + 1 + 100


def test_file_in_use_by_the_running_original_is_not_cut_back(crckpt: Crckpt) -> None:
    """The original keeps running; a second copy in its own PID namespace would share its files."""
    with started(program("journal", "plain")) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        log = tree.workdir / "journal.log"
        size = log.stat().st_size
        wait_for(lambda: log.stat().st_size > size + GROWN_BY, 60, "the log to grow")
        words = ("restore", JOB, "--detach", "--new-pid-namespace", "--grown", "rewind")
        assert f"{JOB} is already running, as PID {tree.pid}" in crckpt.run(*words, status=REFUSED).err
        crckpt.run(*words, "--no-preflight", status=FAILED)
        assert log.stat().st_size > size + GROWN_BY
        assert _is_consecutive(log, "line")
        assert [path.name for path in tree.workdir.glob("journal.log*")] == ["journal.log"]


def test_failed_restore_puts_the_cut_off_part_of_a_log_back(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    """The file is as before, and no other file is left in its directory."""
    with _crashed(crckpt, program("journal", "plain"), "journal.log") as tree:
        log = tree.workdir / "journal.log"
        content = log.read_bytes()
        for committed in (False, True):
            with obstructed.fails(committed=committed):
                words = ("restore", JOB, "--detach", "--grown", "rewind", "--criu", str(obstructed.path))
                assert "nothing is left behind" in crckpt.run(*words, status=FAILED).err
            assert log.read_bytes() == content
            assert [path.name for path in tree.workdir.glob("journal.log*")] == ["journal.log"]
        crckpt.run("restore", JOB, "--detach", "--grown", "rewind")
        _goes_on(tree)
        assert _agrees(tree)


def test_part_cut_off_a_log_survives_if_crckpt_is_killed_during_the_restore(
    crckpt: Crckpt, obstructed: ObstructedCriu
) -> None:
    """The log and the part that was cut off it are both complete, and a second restore works with --written keep."""
    with _crashed(crckpt, program("journal", "plain"), "journal.log") as tree:
        log = tree.workdir / "journal.log"
        content = log.read_bytes()
        words = ("--detach", "--grown", "rewind", "--criu", str(obstructed.path))
        with obstructed.waits(committed=False) as obstacle, foreground(crckpt, *words) as front:
            obstacle.wait_reached()
            front.kill()
            front.wait()
        tree.wait_gone()
        assert log.read_bytes() + _kept(log, _newest(crckpt)).read_bytes() == content
        # crckpt cannot tell that it cut the log itself, so it reports the log as written after the checkpoint.
        error = crckpt.run("restore", JOB, "--detach", status=REFUSED).err
        assert f"{log} was written after the checkpoint" in error
        crckpt.run("restore", JOB, "--detach", "--written", "keep")
        _goes_on(tree)
        assert _agrees(tree)


@contextmanager
def _crashed(crckpt: Crckpt, case: Case, *names: str) -> Iterator[Tree]:
    """A tree that was checkpointed as `job`, wrote on until all these files had grown, and was killed."""
    with started(case) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        files = [tree.workdir / name for name in names]
        before = [file.stat().st_size for file in files]

        def grown() -> bool:
            return all(file.stat().st_size > size + GROWN_BY for file, size in zip(files, before, strict=True))

        wait_for(grown, 60, f"{names} to grow")
        tree.end()
        tree.wait_gone()
        for status in tree.workdir.glob("status*.json"):
            status.unlink()
        yield tree


@contextmanager
def _reader(tree: Tree) -> Iterator[Tree]:
    """Another redis, with a copy of the files of this one."""
    with open_workdir() as workdir:
        shutil.copytree(tree.workdir / "appendonlydir", workdir / "appendonlydir")
        with Tree(REDIS, workdir) as reader:
            yield reader


def _count_on(workdir: Path) -> None:
    wait_for((workdir / "redis.sock").exists, READY_S, "redis to listen")
    wait_for(lambda: _ask(workdir, "PING") == "PONG\n", READY_S, "redis to have read its file")
    _ask(workdir, "EVAL", "for i = 1, 100 do redis.call('INCR', 'counter') end", "0")


def _ask(workdir: Path, *words: str) -> str:
    argv = ["redis-cli", "-s", f"{workdir}/redis.sock", *words]
    return subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60).stdout


def _counter(workdir: Path) -> int:
    return int(_ask(workdir, "GET", "counter") or 0)


def _goes_on(tree: Tree) -> None:
    """Check that the program writes again what it had written last, and continues to count."""
    wait_for(lambda: bool(tree.parts()), 60, "the tree to say something")
    tree.wait_growth(tree.counters(), by=10)


def _refused(crckpt: Crckpt, *words: str) -> str:
    result = crckpt.run("restore", JOB, "--detach", *words, status=REFUSED)
    assert not staging(crckpt)
    return result.err


def _reported_size(crckpt: Crckpt, log: Path, *words: str) -> int:
    """The size of the log at the checkpoint, as the refusal reports it; the refusal also contains `words`."""
    output = _refused(crckpt)
    found = re.search(rf"{log} grew from (\d+) to {log.stat().st_size} bytes since the checkpoint", output)
    assert found, output
    for word in words:
        assert word in output
    return int(found[1])


def _newest(crckpt: Crckpt) -> str:
    return str(crckpt.run("show", JOB, "--json").document["result"]["id"])


def _kept(log: Path, checkpoint: str) -> Path:
    return log.with_name(f"{log.name}.after-{checkpoint[:12]}")


def _agrees(tree: Tree) -> bool:
    """Return whether the log is as long as the program believes."""
    log = tree.facts()[""]["log"]
    assert isinstance(log, list)
    return bool(log[0] == log[1])


def _is_consecutive(log: Path, word: str) -> bool:
    """Return whether the lines `word N` are numbered 1, 2, 3 ... to their last."""
    numbers = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith(word)]
    return len(numbers) > 10 and numbers == list(range(1, len(numbers) + 1))
