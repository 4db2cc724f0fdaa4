"""Whatever is wrong with a target or goes wrong: the checkpoint is right, or it is said why there is none; it lives on.

That a dump is killed, or its store full, or its keeper killed, is in test_incremental_dumps.py; that a program is
replaced in test_replaced_programs.py.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import Crckpt
from incremental import (
    MIB,
    NO_TRACKER,
    assert_complete,
    dump_incrementally,
    executable,
    mounted,
    restore_and_ask,
    wrapper,
)
from rounds import PAGE, PAGES, PROGRAM, Target
from small_disk import mounted_disk
from target_processes import FREEZERS, compile_program, frozen, running, state, tracer, wait_for

from crckpt.host.disk import space
from crckpt.host.syscalls import memory_trials
from crckpt.images.mm import MAP_HUGETLB
from crckpt.ops.dump.lineage import ENDED_ON_REQUEST
from crckpt.tracking.soft_dirty import PagemapAttachment, SoftDirty

pytestmark = [pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER), pytest.mark.usefixtures("orphans_are_reaped")]

FIRST_DUMP_REASON = "this is the first tracked dump of this tree"
UNCOMMITTED_REASON = "the tracker did not see the end of the last dump or round"
TREE_RUNS_ON = "no checkpoint was made; the tree keeps running"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(compile_program("odd.c", tmp_path_factory.mktemp("odd"), "-O1", "-pthread", str(PROGRAM)))


@contextmanager
def odd(program: Path, work: Path, how: str = "") -> Iterator[Target]:
    work.mkdir()
    os.environ["ODD"] = how
    try:
        target = Target(program, work)
    finally:
        del os.environ["ODD"]
    try:
        yield target
    finally:
        target.end()


@pytest.fixture
def target(request: pytest.FixtureRequest, program: Path, tmp_path: Path) -> Iterator[Target]:
    """The target that the parameter names, if any."""
    with odd(program, tmp_path / "work", getattr(request, "param", "")) as running:
        yield running


def refused(crckpt: Crckpt, pid: int, status: int, *words: str) -> str:
    """The error of a dump that fails with this status."""
    result = crckpt.run("dump", str(pid), "job", "--incremental", "--json", *words, status=status)
    return str(result.document["error"]["message"])


def test_criu_killed_between_reset_and_commit_makes_the_next_dump_full(
    crckpt: Crckpt, target: Target, tmp_path: Path
) -> None:
    is_to_kill = tmp_path / "kill"
    script = f'[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ] || [ ! -e {is_to_kill} ] || kill -9 $PPID'
    criu = wrapper(
        tmp_path, f'[ "$1" != dump ] || set -- "$@" --action-script {executable(tmp_path / "script", script)}'
    )
    dump_incrementally(crckpt, target, "--criu", str(criu))
    target.write()
    is_to_kill.touch()
    message = refused(crckpt, target.pid, 21, "--criu", str(criu))
    assert message == f"the dump failed: CRIU ended with signal 9 and printed no error; {TREE_RUNS_ON}"
    is_to_kill.unlink()
    checksum = target.look()
    result = dump_incrementally(crckpt, target, "--criu", str(criu))
    assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert restore_and_ask(crckpt, target, "job", 2) == checksum


def test_disk_full_while_criu_writes_makes_the_next_dump_full(crckpt: Crckpt, target: Target, tmp_path: Path) -> None:
    staging, full = tmp_path / "staging", tmp_path / "full"
    criu = wrapper(
        tmp_path, f'[ ! -e {full} ] || [ "$1" != dump ] || dd if=/dev/zero of={staging}/filler bs=4k 2>/dev/null'
    )
    with mounted_disk(staging, "96m"):
        words = ("--criu", str(criu), "--staging", str(staging))
        dump_incrementally(crckpt, target, *words)
        checksum = target.write()
        full.touch()
        message = f"the dump failed: no space is left in {staging}, the directory for images; {TREE_RUNS_ON}"
        assert refused(crckpt, target.pid, 10, *words) == message
        full.unlink()
        (staging / "filler").unlink()
        result = dump_incrementally(crckpt, target, *words)
        assert (result["tracked"]["base"], result["tracked"]["why_full"]) == (None, UNCOMMITTED_REASON)
        assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert restore_and_ask(crckpt, target, "job", 1) == checksum


def is_incremental(crckpt: Crckpt, target: Target, why: str = FIRST_DUMP_REASON) -> str:
    """Two dumps, full for this reason and counting from the first; the checksum of what the second holds."""
    first = dump_incrementally(crckpt, target)
    checksum = target.write()
    second = dump_incrementally(crckpt, target)
    assert (first["tracked"]["why_full"], second["tracked"]["base"]) == (why, first["checkpoint"]["id"])
    assert_complete(crckpt, second["checkpoint"]["id"], target)
    crckpt.run("rm", first["checkpoint"]["id"])
    crckpt.run("gc")
    return checksum


@pytest.mark.parametrize("target", ["seccomp"], indirect=True)
def test_process_with_a_killing_seccomp_filter_is_dumped_incrementally(crckpt: Crckpt, target: Target) -> None:
    """The filter kills the process at the injected call."""
    checksum = is_incremental(crckpt, target)
    assert target.look() == checksum, "the process lives"
    assert restore_and_ask(crckpt, target, "job", 1) == checksum
    assert "\nSeccomp:\t2\n" in Path(f"/proc/{target.pid}/status").read_text()


@pytest.mark.parametrize("target", ["userfaultfd"], indirect=True)
def test_process_with_its_own_userfaultfd_is_refused(crckpt: Crckpt, target: Target) -> None:
    """CRIU cannot save a userfaultfd."""
    checksum = target.look()
    why = "fd 3 is a device or special file that CRIU cannot save: anon anon_inode:[userfaultfd]"
    assert refused(crckpt, target.pid, 24) == why
    assert "userfaultfd" in refused(crckpt, target.pid, 21, "--no-preflight")
    assert target.look() == checksum
    (held,) = map(int, (target.work / "odd").read_text().split())
    with Path(f"/proc/{target.pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(held)
        assert memory.read(8) == b"\1" * 8


def test_process_under_a_debugger_is_refused_and_stays_tracked(crckpt: Crckpt, target: Target) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed")
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    checksum = target.write()
    words = ["gdb", "--quiet", "-nx", "-iex", "set debuginfod enabled off", "-p", str(target.pid)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as gdb:
        wait_for(lambda: tracer(target.pid) == gdb.pid, "gdb to attach")
        message = refused(crckpt, target.pid, 24)
        traced = f"process {target.pid} (odd) is traced by process {gdb.pid} (gdb)"
        assert message == f"{traced}, and only one process can trace at a time"
        gdb.kill()
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["base"] == first, "the refused dump had not begun"
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert restore_and_ask(crckpt, target, "job", 1) == checksum


def test_stopped_process_is_tracked_and_stays_stopped(crckpt: Crckpt, target: Target) -> None:
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    checksum = target.write()
    os.kill(target.pid, signal.SIGSTOP)
    wait_for(lambda: state(target.pid) == "T", "the stop")
    # First with a running tracker, then with one that starts while the process is stopped.
    assert dump_incrementally(crckpt, target)["tracked"]["base"] == first
    crckpt.run("ps", "--end", str(target.pid))
    assert dump_incrementally(crckpt, target)["tracked"]["why_full"] == ENDED_ON_REQUEST
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["base"] is not None
    assert state(target.pid) == "T"
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    target.end()
    crckpt.run("restore", "job", "--detach")
    assert state(target.pid) == "T"
    os.kill(target.pid, signal.SIGCONT)
    assert target.look() == checksum


@pytest.mark.parametrize("version", FREEZERS)
def test_process_in_a_frozen_cgroup_is_refused_and_stays_tracked(crckpt: Crckpt, target: Target, version: int) -> None:
    dump_incrementally(crckpt, target)
    freezer = FREEZERS[version]
    with frozen(target.pid, version) as group:
        for words in (("dump", "--incremental"), ("dump", "--no-incremental"), ("pre-dump",)):
            error = crckpt.run(*words, str(target.pid), "job", "--json", status=24).document["error"]
            assert "is frozen by its control group" in error["message"]
            assert f"echo {freezer.thaw} > '{group}/{freezer.switch}'" in error["hint"]
    target.write()
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["base"]
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_process_with_a_full_descriptor_table_keeps_running_after_a_failed_dump(crckpt: Crckpt, target: Target) -> None:
    """CRIU needs a free descriptor in the process, as crckpt does.

    Only the injection reports this (test_userfaultfd.py): write protection enters the process; with soft-dirty bits the
    process is tracked, and the dump fails.
    """
    limits = resource.prlimit(target.pid, resource.RLIMIT_NOFILE)
    checksum = target.write()
    resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    assert (
        refused(crckpt, target.pid, 21, "--no-preflight") == f"the dump failed: too many files are open; {TREE_RUNS_ON}"
    )
    resource.prlimit(target.pid, resource.RLIMIT_NOFILE, limits)
    assert target.look() == checksum
    checksum = is_incremental(
        crckpt, target, UNCOMMITTED_REASON if memory_trials.tracks_by_soft_dirty() else FIRST_DUMP_REASON
    )
    assert restore_and_ask(crckpt, target, "job", 3) == checksum


@pytest.mark.parametrize("target", ["direct"], indirect=True)
def test_process_that_reads_with_o_direct_is_dumped_in_full(crckpt: Crckpt, target: Target) -> None:
    for _ in range(3):
        checksum = target.write()
        result = dump_incrementally(crckpt, target)
        assert result["tracked"]["base"] is None
        why = result["tracked"]["why_full"]
        assert why.startswith(f"PID {target.pid} has an O_DIRECT descriptor ("), why
        assert why.endswith("crckpt cannot see what the device writes"), why
        assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert restore_and_ask(crckpt, target, "job", 3) == checksum


@contextmanager
def huge_pages(count: int) -> Iterator[None]:
    """Reserve so many more huge pages. Only one test at a time has huge pages."""
    setting = Path("/proc/sys/vm/nr_hugepages")
    with setting.open("rb") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        before = int(setting.read_text())
        setting.write_text(str(before + count))
        try:
            if int(setting.read_text()) < before + count:
                pytest.skip("there is no room for huge pages")
            yield
        finally:
            setting.write_text(str(before))


def test_hugetlb_pages_are_restored_from_an_incremental_dump(crckpt: Crckpt, program: Path, tmp_path: Path) -> None:
    with huge_pages(4), odd(program, tmp_path / "work", "hugetlb") as target:
        (held,) = map(int, (target.work / "odd").read_text().split())
        first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
        with Path(f"/proc/{target.pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(held)
            memory.write(b"written since")
        checksum = target.write()
        result = dump_incrementally(crckpt, target)
        assert result["tracked"]["base"] == first
        assert_complete(crckpt, result["checkpoint"]["id"], target)
        assert crckpt.run("rehearse", "job", "--json").document["result"]["failures"] == []
        assert restore_and_ask(crckpt, target, "job", 1) == checksum
        with Path(f"/proc/{target.pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(held)
            assert memory.read(2 * MIB) == b"written since".ljust(2 * MIB, b"\x44")
        assert list((crckpt.store / "tmp").iterdir()) == []


def test_process_whose_hugetlb_pages_an_old_criu_misses_is_not_tracked(program: Path, tmp_path: Path) -> None:
    """An old CRIU trusts the soft-dirty bits, which do not cover huge pages: such a process is dumped in full."""
    with huge_pages(4), odd(program, tmp_path / "work", "hugetlb") as target:
        held = SoftDirty(misses_huge=True).attach((target.pid, os.getpid()))
        assert "a CRIU before 3.18 misses" in str(held[target.pid])
        others = (held[os.getpid()], *SoftDirty().attach((target.pid,)).values())
        for other in others:
            assert isinstance(other, PagemapAttachment)
            assert other.catch_up() == ""
            other.close()


def every_free_huge_page() -> mmap.mmap:
    size = space.free_huge_pages(2 * MIB) * 2 * MIB
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)


def test_missing_free_hugetlb_pages_fail_the_dump_and_refuse_the_restore(
    crckpt: Crckpt, program: Path, tmp_path: Path
) -> None:
    with huge_pages(2), odd(program, tmp_path / "work", "hugetlb") as target:
        checksum = target.look()
        with every_free_huge_page():
            result = crckpt.run("dump", str(target.pid), "job", "--json", status=21).document["error"]["message"]
            assert "no reserved page is free" in result
            assert result.endswith(TREE_RUNS_ON)
            assert target.look() == checksum
        crckpt.run("dump", str(target.pid), "job")
        target.end()
        with every_free_huge_page():
            for words in (("restore", "job", "--detach"), ("rehearse", "job")):
                result = crckpt.run(*words, "--json", status=24)
                message = result.document["error"]["message"]
                assert "needs 1 reserved huge pages (2.0 MiB each), but only 0 are free" in message
        crckpt.run("restore", "job", "--detach")
        assert target.look() == checksum


def test_missing_space_for_hugetlb_files_refuses_the_restore(program: Path, tmp_path: Path) -> None:
    with (
        huge_pages(4),
        mounted(tmp_path / "store", 128 * MIB) as crckpt,
        odd(program, tmp_path / "work", "hugetlb") as target,
    ):
        checksum = target.look()
        crckpt.run("dump", str(target.pid), "job")
        target.end()
        filler = crckpt.store / "filler"
        filler.write_bytes(bytes(space.free_disk(crckpt.store) - 16 * MIB))
        try:
            for words in (("restore", "job", "--detach"), ("rehearse", "job")):
                result = crckpt.run(*words, "--json", status=24)
                assert str(crckpt.store) in result.document["error"]["message"]
        finally:
            filler.unlink()
            crckpt.run("restore", "job", "--detach")
        assert target.look() == checksum


def test_dump_of_a_process_in_uninterruptible_sleep_is_refused_and_detaches_from_it(
    crckpt: Crckpt, tmp_path: Path
) -> None:
    program = compile_program("entered.c", tmp_path, "-pthread")
    with running(program, "uninterruptible") as process:
        wait_for(lambda: state(process.pid) == "D", "vfork to wait")
        why = "a thread of the tree did not stop within the time limit (it is in uninterruptible sleep, or "
        assert refused(crckpt, process.pid, 24).startswith(why)
        assert tracer(process.pid) == 0
        assert state(process.pid) == "D"
        (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(child, signal.SIGKILL)
        assert process.wait() == 0, "the process lives on"


def test_write_of_an_outside_process_during_the_dump_is_in_the_next(crckpt: Crckpt, target: Target) -> None:
    """An outside process is not frozen: it may write between CRIU's read of a page and the reset of its bit."""
    if not dump_incrementally(crckpt, target)["tracked"]["why"].startswith("tracker: uffd-wp"):
        pytest.skip("with soft-dirty bits that is missed")
    for _ in range(3):
        with written_from_outside(target):
            dump_incrementally(crckpt, target)
        result = dump_incrementally(crckpt, target)
        assert result["tracked"]["base"]
        assert_complete(crckpt, result["checkpoint"]["id"], target)


@contextmanager
def written_from_outside(target: Target) -> Iterator[None]:
    """Write the pages of the target's area one after the other, each once, while the block runs."""
    done = threading.Event()

    def write() -> None:
        with Path(f"/proc/{target.pid}/mem").open("r+b", buffering=0) as memory:
            for page in range(PAGES):
                memory.seek(target.area + page * PAGE)
                memory.write(os.urandom(8))
                if done.wait(0.0001):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def test_32_bit_program_is_dumped_incrementally_and_restored(crckpt: Crckpt, tmp_path: Path) -> None:
    flags = ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector", "-fno-pic", "-no-pie")
    try:
        program = compile_program("counts_32.c", tmp_path, *flags)
    except subprocess.CalledProcessError:
        pytest.skip("gcc makes no 32-bit programs here")
    shown = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    (place,) = (int(line.split()[0], 16) + 8192 for line in shown.splitlines() if line.endswith(" count"))
    null = subprocess.DEVNULL
    process = subprocess.Popen([program], stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)

    try:

        def count() -> int:
            with Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(place)
                return int.from_bytes(memory.read(4), "little")

        # an exec that Popen has seen begin may still be mapping the program
        wait_for(lambda: Path(f"/proc/{process.pid}/syscall").read_text().startswith("162 "), "it to sleep")
        results: list[dict[str, Any]] = []
        counted = 0
        for _ in range(2):
            wait_for(lambda: count() > counted + 20, "it to count")  # noqa: B023 (it is waited for)
            counted = count()
            result = crckpt.run("dump", str(process.pid), "job", "--incremental", "--json")
            results.append(result.document["result"])
        assert results[1]["tracked"]["base"] == results[0]["checkpoint"]["id"]
        before = count()
        wait_for(lambda: count() > before, "it to count on")
    finally:
        process.kill()
        process.wait()
    crckpt.run("restore", "job", "--detach")
    before = count()
    assert before >= counted
    wait_for(lambda: count() > before, "it to count on")
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
