"""`dump --incremental`: each checkpoint is complete, and reports what was incremental, or why nothing was."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from command import PROGRAM, Crckpt
from dump_moments import orphans_of, wait_ended
from image_sets import flip, pack_path
from incremental import (
    MIB,
    NO_TRACKER,
    assert_complete,
    dump_incrementally,
    executable,
    filling,
    keeper,
    mounted,
    restore_and_ask,
    trackers,
    wrapper,
)
from oracle import PROGRAMS
from rounds import FEW_PAGES, PAGE, PAGES, Target
from stopped_trees import program
from target_processes import merging, running, state
from trees import PYTHON, READY_S, runs, started, wait_for

from crckpt.criu.find import find
from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.model import MEBIBYTE
from crckpt.ops.dump.lineage import ENDED_ON_REQUEST
from crckpt.store import Repository, verify
from crckpt.store.format.pack import FRAME_PAGES, open_pack
from crckpt.tracking.keeper.client import KILLED, find_session, start_session

UNCOMMITTED_REASON = "the tracker did not see the end of the last dump or round"
FIRST_DUMP_REASON = "this is the first tracked dump of this tree"
RESTORED_REASON = "the tree was restored or started again since it was tracked"
NEW_TRACKER_HINT = "; --incremental starts a new tracker"
ANSWER_LIMIT_S = "2"
PROGRAM_WITHOUT_ITS_MAIN_THREAD = """
import ctypes, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
ctypes.CDLL(None).syscall(60, 0)
"""
"""Another thread goes on. 60: exit(2), x86-64."""
TRACKER_CHOICES = (
    "tracker: uffd-wp (this kernel has no soft-dirty bits)",
    "tracker: soft-dirty (the kernel has soft-dirty bits)",
)

pytestmark = [pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER), pytest.mark.usefixtures("orphans_are_reaped")]


def test_each_checkpoint_of_a_series_restores_without_the_others(crckpt: Crckpt, target: Target) -> None:
    sums, made = [], []
    for number in range(5):
        sums.append(target.report()[0])
        result = dump_incrementally(crckpt, target)
        tracking, checkpoint = result["tracked"], result["checkpoint"]
        made.append(checkpoint["id"])
        if number == 0:
            assert (tracking["base"], tracking["why_full"]) == (None, FIRST_DUMP_REASON)
            assert tracking["why"] in TRACKER_CHOICES
        else:
            assert (tracking["base"], tracking["why_full"], tracking["whole"]) == (made[-2], "", [])
            assert checkpoint["parent"] == made[-2]
            assert len(target.written()) <= tracking["written_pages"] <= len(target.written()) + FEW_PAGES
            assert checkpoint["statistics"]["inherited_pages"] >= PAGES - len(target.written()) - FEW_PAGES
            assert checkpoint["statistics"]["new_bytes"] <= (len(target.written()) + FEW_PAGES) * PAGE
            assert checkpoint["statistics"]["raw_bytes"] > PAGES * PAGE, "it is complete"
        assert_complete(crckpt, made[-1], target)
        if number < 4:
            target.write()
    crckpt.run("verify", "--all")
    for number in (2, 4, 1):
        assert restore_and_ask(crckpt, target, made[number], number) == sums[number]
    crckpt.run("rm", *made[:3], made[4])
    crckpt.run("gc")
    crckpt.run("verify", "--all")
    assert restore_and_ask(crckpt, target, made[3], 3) == sums[3]


def test_memory_advice_given_since_the_parent_is_restored(crckpt: Crckpt, target: Target) -> None:
    """A list of maps does not show the advice, because it was given for a whole map."""
    given = []
    for _ in range(3):
        dump_incrementally(crckpt, target)
        target.write()
        given.append(advised(target.pid))
    assert [sum("dc" in advice for advice in maps.values()) for maps in given] == [0, 1, 1]
    assert given[0].keys() == given[1].keys(), "it had other advice before"
    dump_incrementally(crckpt, target)
    restore_and_ask(crckpt, target, "job", 3)
    assert advised(target.pid) == given[2]


def advised(pid: int) -> dict[str, set[str]]:
    """What the process has advised of its maps, by their addresses: not to be inherited, not to be in huge pages."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    maps = re.findall(r"^([0-9a-f]+-[0-9a-f]+) .*\n(?:[A-Z].*\n)*?VmFlags: (.*)$", text, re.MULTILINE)
    return {place: advice for place, flags in maps if (advice := {"dc", "nh"} & set(flags.split()))}


def test_pages_without_a_soft_dirty_bit_are_restored(crckpt: Crckpt, tmp_path: Path) -> None:
    """The pages were discarded and read in a huge page, moved, merged, or written in a mapping merged with others."""
    null = subprocess.DEVNULL
    words = [sys.executable, str(PROGRAMS / "loses_bits.py"), str(tmp_path)]

    def read_report(number: int) -> list[int]:
        wait_for((tmp_path / f"report-{number}").exists, 60, f"what it says, {number}")
        return [int(word) for word in (tmp_path / f"report-{number}").read_text().split()]

    with merging():
        process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, cwd="/", env={}, start_new_session=True)
        try:
            assert read_report(0) == [1 << 21, 0, 0, 0, 0]
            crckpt.run("dump", str(process.pid), "job", "--incremental")
            process.send_signal(signal.SIGUSR1)
            assert read_report(1) == [0, 1 << 21, 64 * PAGE, 64 * PAGE, 64]
            crckpt.run("dump", str(process.pid), "job", "--incremental")
        finally:
            process.kill()
            process.wait()
    crckpt.run("restore", "job", "--detach")
    try:
        os.kill(process.pid, signal.SIGUSR2)
        assert read_report(2)[:4] == [0, 1 << 21, 64 * PAGE, 64 * PAGE]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)


def test_tree_with_undecodable_names_is_tracked_and_restored(crckpt: Crckpt) -> None:
    """The kernel cuts names in the middle of a character, and escapes only line feeds."""
    with started(program("odd_names")) as tree:
        facts, pid = tree.facts(), str(tree.pid)
        crckpt.run("doctor", pid)
        crckpt.run("dump", pid, "job", "--incremental")
        crckpt.run("pre-dump", pid, "job")
        result = crckpt.run("dump", pid, "job", "--incremental", "--stop", "--json").document["result"]
        assert (result["tracked"]["why_full"], result["tracked"]["rounds"]) == ("", 1)
        tree.wait_gone()
        crckpt.run("restore", "job", "--detach")
        tree.wait_verified()
        assert tree.facts() == facts


def test_criu_writes_only_the_changed_pages(crckpt: Crckpt, target: Target, tmp_path: Path) -> None:
    """The images are examined before they are stored."""
    dump_incrementally(crckpt, target)
    target.write()
    staging = tmp_path / "staging"
    staging.mkdir()
    sizes: list[int] = []
    process = crckpt.start("dump", str(target.pid), "job", "--incremental", "--json", "--staging", str(staging))
    while process.poll() is None:
        with suppress(FileNotFoundError):
            sizes += [path.stat().st_size for path in staging.glob("*/images/pages-1.img")]
    assert process.wait() == 0
    process.communicate()
    assert 0 < max(sizes) <= (len(target.written()) + FEW_PAGES) * PAGE


def test_incremental_dump_with_stop_ends_the_tracker(crckpt: Crckpt, target: Target) -> None:
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    checksum = target.write()
    gone = keeper(crckpt, target)["pid"]
    result = dump_incrementally(crckpt, target, "--stop")
    assert result["tracked"]["base"] == first
    assert len(target.written()) <= result["tracked"]["written_pages"] <= len(target.written()) + FEW_PAGES
    crckpt.run("rm", first)
    crckpt.run("gc")
    assert restore_and_ask(crckpt, target, "job", 1) == checksum
    wait_for(lambda: not Path(f"/proc/{gone}").exists() or _is_zombie(gone), 60, "the keeper to end")
    assert dump_incrementally(crckpt, target)["tracked"]["why_full"] == RESTORED_REASON, (
        "it is another process, of the same number"
    )


def test_dump_with_stop_is_committed_although_there_is_no_space_for_statistics(
    crckpt: Crckpt, target: Target, tmp_path: Path
) -> None:
    """CRIU writes its statistics last: the checkpoint is complete, and the tree has ended."""
    run = 'for last; do [ "$before" != --work-dir ] || work=$last; before=$last; done\n'
    criu = executable(tmp_path / "criu", f'{run}{find(None, None).path} "$@" && rm -f "$work/stats-dump"')
    checksum = target.report()[0]
    result = dump_incrementally(crckpt, target, "--stop", "--criu", str(criu))
    assert (result["tracked"]["written_pages"], result["tracked"]["why_full"]) == (0, FIRST_DUMP_REASON)
    assert not runs(target.pid)
    assert restore_and_ask(crckpt, target, "job", 0) == checksum


def _is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


def test_killed_tracker_makes_the_next_dump_full(crckpt: Crckpt, target: Target) -> None:
    dump_incrementally(crckpt, target)
    target.write()
    os.kill(keeper(crckpt, target)["pid"], signal.SIGKILL)
    target.write()
    # The dump is incremental without the option, because the tree was tracked before.
    result = crckpt.run("dump", str(target.pid), "job", "--json").document["result"]
    assert result["tracked"]["why_full"] == KILLED
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    target.write()
    after = dump_incrementally(crckpt, target)
    assert after["tracked"]["base"] == result["checkpoint"]["id"]
    assert_complete(crckpt, after["checkpoint"]["id"], target)


def test_tracker_killed_in_the_freeze_makes_the_next_dump_full(crckpt: Crckpt, target: Target, tmp_path: Path) -> None:
    """The running dump is completed. The next one is full."""
    dump_incrementally(crckpt, target)
    target.write()
    kept = keeper(crckpt, target)["pid"]
    process = crckpt.start("dump", str(target.pid), "job", "--incremental", "--json")
    while not any(crckpt.store.glob("tmp/*/images/pages-1.img")):
        assert process.poll() is None
    os.kill(kept, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 0
    newest = Repository.open(crckpt.store).checkpoints()[-1]
    assert_complete(crckpt, newest.id, target)
    target.write()
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["why_full"] == KILLED
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_hung_tracker_makes_the_next_dump_full(crckpt: Crckpt, target: Target) -> None:
    dump_incrementally(crckpt, target)
    kept = keeper(crckpt, target)["pid"]
    os.kill(kept, signal.SIGSTOP)
    why = f"its tracker (process {kept}) does not answer"
    result = crckpt.run("dump", str(target.pid), "job", "--json", CRCKPT_ANSWER_S=ANSWER_LIMIT_S).document["result"]
    assert result["tracked"]["why_full"] == why
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    unanswered = crckpt.run("ps", "--json", CRCKPT_ANSWER_S=ANSWER_LIMIT_S).document["result"]["unanswered"]
    assert any(message.startswith(why) for message in unanswered)
    ended = crckpt.run("ps", "--end", str(target.pid), "--json", status=20, CRCKPT_ANSWER_S=ANSWER_LIMIT_S)
    error = ended.document["error"]
    assert error["message"] == why
    assert f"kill -KILL {kept}" in error["hint"]
    os.kill(kept, signal.SIGKILL)
    assert dump_incrementally(crckpt, target)["tracked"]["why_full"] == KILLED


def test_full_dump_no_longer_reports_a_killed_tracker_after_ps_end(crckpt: Crckpt, target: Target) -> None:
    dump_incrementally(crckpt, target)
    os.kill(keeper(crckpt, target)["pid"], signal.SIGKILL)
    words = ("dump", str(target.pid), "job", "--json")
    planned = crckpt.run(*words, "--dry-run").document["result"]
    assert planned["tracked"]["why_full"] == f"{KILLED}; the dump tries to start one"
    crckpt.run("ps", "--end", str(target.pid))
    assert crckpt.run(*words).document["result"]["tracked"]["why_full"] == f"{ENDED_ON_REQUEST}{NEW_TRACKER_HINT}"
    crckpt.run("ps", "--end", str(target.pid), status=2)


def test_replaced_program_is_dumped_in_full(crckpt: Crckpt, target: Target) -> None:
    dump_incrementally(crckpt, target)
    target.start_afresh()
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["why_full"] == f"PID {target.pid}: the program was replaced (exec)"
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    checksum = target.write()
    after = dump_incrementally(crckpt, target)
    assert after["tracked"]["base"] == result["checkpoint"]["id"]
    assert restore_and_ask(crckpt, target, "job", 1) == checksum


def test_forked_child_is_dumped_in_full_and_then_tracked(crckpt: Crckpt, target: Target) -> None:
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    target.send_signal(signal.SIGWINCH)
    (child,) = map(int, Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split())
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["base"] == first
    assert result["tracked"]["whole"] == [f"PID {child}: the process is new"]
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert_complete(crckpt, result["checkpoint"]["id"], target, child)
    target.write()
    after = dump_incrementally(crckpt, target)
    assert (after["tracked"]["base"], after["tracked"]["whole"]) == (result["checkpoint"]["id"], [])
    assert after["tracked"]["written_pages"] < PAGES // 2
    crckpt.run("rm", first, result["checkpoint"]["id"])
    crckpt.run("gc")
    assert_complete(crckpt, after["checkpoint"]["id"], target)
    assert_complete(crckpt, after["checkpoint"]["id"], target, child)


def test_dump_after_a_failed_dump_is_full(target: Target, tmp_path: Path) -> None:
    """The disk is full when the checkpoint is to be stored: by then the bits are reset."""
    staging, filler, full = tmp_path / "staging", tmp_path / "store/filler", tmp_path / "full"
    staging.mkdir()
    criu = filling(tmp_path / "criu", filler, full)
    words = ("--criu", str(criu), "--staging", str(staging))
    with mounted(tmp_path / "store", 64 * MIB) as crckpt:
        dump_incrementally(crckpt, target, *words)
        target.write()
        full.touch()
        error = crckpt.run("dump", str(target.pid), "job", "--json", *words, status=10).document["error"]
        assert error["message"].endswith("no checkpoint was made; the tree keeps running")
        full.unlink()
        filler.unlink()
        result = dump_incrementally(crckpt, target, *words)
        assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
        assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_dump_after_a_killed_dump_is_full(crckpt: Crckpt, target: Target) -> None:
    """crckpt is killed, not CRIU: CRIU resumes the tree, but cannot restore the soft-dirty bits."""
    dump_incrementally(crckpt, target)
    target.write()
    process = crckpt.start("dump", str(target.pid), "job", "--json")
    while not any(crckpt.store.glob("tmp/*/images/pages-1.img")):
        assert process.poll() is None
    wait_ended(orphans_of(process))
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_dump_with_another_criu_is_full_and_leaves_the_tracker_unchanged(
    crckpt: Crckpt, target: Target, tmp_path: Path
) -> None:
    first = dump_incrementally(crckpt, target)
    other = filling(tmp_path / "criu", tmp_path / "filler", tmp_path / "full")
    tracking = dump_incrementally(crckpt, target, "--criu", str(other))["tracked"]
    assert tracking["why_full"].startswith(f"the tracker was started for another CRIU, {first['criu']}")
    assert dump_incrementally(crckpt, target)["tracked"]["base"] == first["checkpoint"]["id"]


def test_tracker_is_replaced_if_criu_or_crckpt_was_upgraded(crckpt: Crckpt, target: Target, tmp_path: Path) -> None:
    """The running tracker describes the library and the protocol of the old version."""
    criu = wrapper(tmp_path, "")
    words = ("--criu", str(criu))
    dump_incrementally(crckpt, target, *words)
    before = keeper(crckpt, target)["pid"]
    os.utime(criu)
    planned = crckpt.run("dump", str(target.pid), "job", "--json", "--dry-run", *words).document["result"]
    for tracked in (planned["tracked"], dump_incrementally(crckpt, target, *words)["tracked"]):
        assert tracked["why_full"].startswith("crckpt or CRIU has changed since the tracker was started")
    result = crckpt.run("dump", str(target.pid), "job", "--json", *words).document["result"]
    assert result["tracked"]["why_full"] == KILLED
    assert keeper(crckpt, target)["pid"] != before
    after = dump_incrementally(crckpt, target, *words)
    assert after["tracked"]["base"] == result["checkpoint"]["id"]
    assert_complete(crckpt, after["checkpoint"]["id"], target)


def test_tree_with_more_processes_than_the_descriptor_limit_is_tracked(crckpt: Crckpt) -> None:
    """Services and logins have low limits, and the tracker needs one descriptor for each process."""
    words = ("dump", "--incremental", "--json")
    limited = ["prlimit", "--nofile=40:", str(PROGRAM)]
    line = "for one in $(seq 60); do sleep 1000 & done; wait"
    with subprocess.Popen(
        ["bash", "-c", line],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for(lambda: len(psutil.Process(process.pid).children()) == 60, 60, "all to be there")
            tracked = []
            for _ in range(2):
                result = subprocess.run(
                    [*limited, *words, str(process.pid), "job"],
                    env=crckpt.environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert result.returncode == 0, result.stdout + result.stderr
                tracked.append(json.loads(result.stdout)["result"]["tracked"])
            assert tracked[0]["why_full"] == FIRST_DUMP_REASON
            assert (tracked[1]["base"] is not None, tracked[1]["whole"]) == (True, [])
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_base_found_damaged_by_verify_makes_the_dump_full(crckpt: Crckpt, target: Target) -> None:
    """The damage is found before CRIU runs, because the dump would leave pages to the base."""
    for _ in range(2):
        base = dump_incrementally(crckpt, target)["checkpoint"]["id"]
        target.write()
    repository = Repository.open(crckpt.store)
    use = max(repository.get(base).packs, key=lambda one: one.pages)
    path = pack_path(repository, use.digest)
    flip(path, int(open_pack(repository.backend, use.digest).table["offset"][1]))
    crckpt.run("verify", "--all", status=13)
    result = dump_incrementally(crckpt, target)
    assert "frame 1: its SHA-256 does not match" in result["tracked"]["why_full"]
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert result["checkpoint"]["id"] not in {one for bad in verify(repository).damages for one in bad.checkpoints}


def test_dumps_are_full_while_an_o_direct_descriptor_is_open_and_once_after(crckpt: Crckpt, target: Target) -> None:
    dump_incrementally(crckpt, target)
    target.send_signal(signal.SIGURG)  # the program opens a file with O_DIRECT
    for _ in range(2):
        result = dump_incrementally(crckpt, target)
        assert result["tracked"]["base"] is None
        assert "has an O_DIRECT descriptor" in result["tracked"]["why_full"]
        assert_complete(crckpt, result["checkpoint"]["id"], target)
    target.send_signal(signal.SIGURG)  # it closes the file
    result = dump_incrementally(crckpt, target)
    assert "has an O_DIRECT descriptor" in result["tracked"]["why_full"], "the dump before could not be a base"
    assert dump_incrementally(crckpt, target)["tracked"]["base"] == result["checkpoint"]["id"]


def test_tree_that_cannot_be_tracked_is_dumped_in_full(crckpt: Crckpt, target: Target, tmp_path: Path) -> None:
    """Another tracker has the tree; a dump of a process inside the tree detects that."""
    target.send_signal(signal.SIGWINCH)
    (child,) = map(int, Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split())
    dump_incrementally(crckpt, target)
    result = crckpt.run("dump", str(child), "child", "--incremental", "--json").document["result"]
    assert result["tracked"]["base"] is None
    assert result["tracked"]["why"] == f"tracker: none (PID {child}: it is tracked by another crckpt)"
    why = f"the tree cannot be tracked: PID {child}: it is tracked by another crckpt"
    assert result["tracked"]["why_full"] == why
    assert_complete(crckpt, result["checkpoint"]["id"], target, child)


def test_removed_base_makes_the_dump_full(crckpt: Crckpt, target: Target) -> None:
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    crckpt.run("rm", first)
    crckpt.run("gc")
    why = f"checkpoint {first[:12]}, the tree's last one, was removed or is in another store"
    assert f"full dump: {why}\n" in crckpt.run("dump", str(target.pid), "job", "--dry-run").out
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["why_full"] == why
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_second_concurrent_dump_of_a_tree_is_refused(crckpt: Crckpt, target: Target) -> None:
    """A second dump is refused until the first one is committed or its process has ended."""
    dump_incrementally(crckpt, target)
    root = proc.read_process(target.pid)
    assert root is not None
    first = find_session(root)
    assert first is not None
    first.begin()
    assert keeper(crckpt, target)["dumping"] == os.getpid()
    error = crckpt.run("dump", str(target.pid), "job", "--json", status=21).document["error"]
    assert error["message"].startswith(f"process {os.getpid()} is copying or dumping this tree; no checkpoint was made")
    first.close()
    assert dump_incrementally(crckpt, target)["tracked"]["why_full"] == UNCOMMITTED_REASON


def test_dump_that_cannot_begin_does_not_count_as_running() -> None:
    """The connection that asked for the dump may stay open."""
    with running(PYTHON, "-c", PROGRAM_WITHOUT_ITS_MAIN_THREAD) as process:
        root = proc.read_process(process.pid)
        assert root is not None
        session = start_session(root, find(None, None).path, "")
        with closing(session):
            assert process.stdin is not None
            process.stdin.write("\n")
            wait_for(lambda: state(process.pid) == "Z", READY_S, "the main thread to end")
            with pytest.raises(HostCannot, match="has ended"):
                session.begin()
            assert session.describe().dumping == 0


def test_tracker_started_by_this_crckpt_is_recognized(target: Target) -> None:
    """After an upgrade, this crckpt releases the tracker that it started, and no other."""
    root = proc.read_process(target.pid)
    assert root is not None
    session = start_session(root, find(None, None).path, "")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        with closing(session):
            kept = session.describe().pid
            session.retire()
            wait_ended((kept,))
        assert not signal.sigpending()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_full_dump_with_no_incremental_does_not_change_the_next_base(crckpt: Crckpt, target: Target) -> None:
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    target.write()
    result = crckpt.run("dump", str(target.pid), "job", "--no-incremental", "--json").document["result"]
    assert (result["tracked"]["base"], result["tracked"]["why_full"]) == (None, "--no-incremental was given")
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    after = dump_incrementally(crckpt, target)
    assert after["tracked"]["base"] == first
    assert_complete(crckpt, after["checkpoint"]["id"], target)


def test_next_incremental_dump_counts_from_a_dump_in_the_background(crckpt: Crckpt, target: Target) -> None:
    dump_incrementally(crckpt, target)
    target.write()
    crckpt.run("dump", str(target.pid), "job", "--async")
    wait_for(lambda: len(Repository.open(crckpt.store).checkpoints()) == 2, 60, "the checkpoint")
    wait_for(lambda: not keeper(crckpt, target)["dumping"], 60, "the dump to end")
    newest = Repository.open(crckpt.store).checkpoints()[-1]
    assert newest.statistics.inherited_pages
    target.write()
    assert dump_incrementally(crckpt, target)["tracked"]["base"] == newest.id


@pytest.mark.parametrize("what", ["manifest", "pack"])
def test_damaged_base_makes_the_dump_full(crckpt: Crckpt, target: Target, what: str) -> None:
    """The full dump does not depend on the damaged pages."""
    base = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    if what == "manifest":
        flip(crckpt.store / "checkpoints" / base / "manifest.json", 100)
    else:
        repository = Repository.open(crckpt.store)
        checkpoint = repository.get(base)
        _, _, number, page = checkpoint.index.extents[0]
        digest = checkpoint.packs[number].digest
        path = pack_path(repository, digest)
        flip(path, int(open_pack(repository.backend, digest).table["offset"][page // FRAME_PAGES]))
    words = ("dump", str(target.pid), "job", "--json")
    if what == "manifest":
        planned = crckpt.run(*words, "--dry-run").document["result"]
        assert "is damaged" in planned["tracked"]["why_full"]
    target.write()
    result = crckpt.run(*words).document["result"]
    assert result["tracked"]["base"] is None
    assert base[:12] in result["tracked"]["why_full"]
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert dump_incrementally(crckpt, target)["tracked"]["base"] == result["checkpoint"]["id"]


def test_ps_lists_the_tracker_of_a_tree_and_ends_it(crckpt: Crckpt, target: Target) -> None:
    assert not [tracker for tracker in trackers(crckpt) if tracker["root"] == target.pid]
    crckpt.run("ps", "--end", str(target.pid), status=2)
    before = datetime.now(UTC)
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    listed = keeper(crckpt, target)
    assert listed["base"] == first
    assert listed["usage"]["memory_bytes"] > MEBIBYTE
    # The kernel says when it has started, in whole seconds.
    seconds = timedelta(seconds=2)
    assert before - seconds < datetime.fromisoformat(listed["usage"]["started"]) < datetime.now(UTC) + seconds
    (socket,) = Path("/run/crckpt/keepers").glob(f"{target.pid}-*")
    foreign = socket.with_name(f"foreign-{target.pid}")
    foreign.mkdir()
    try:
        assert f"{target.pid}" in crckpt.run("ps").out
    finally:
        foreign.rmdir()
    assert socket.stat().st_mode & 0o777 == 0o600
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    crckpt.run("ps", "--end", str(target.pid))
    assert not [tracker for tracker in trackers(crckpt) if tracker["root"] == target.pid]
    assert not socket.exists()
    result = crckpt.run("dump", str(target.pid), "job", "--json").document["result"]
    assert result["tracked"]["why_full"] == f"{ENDED_ON_REQUEST}{NEW_TRACKER_HINT}"
