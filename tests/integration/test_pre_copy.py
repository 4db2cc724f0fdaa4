"""Rounds before a dump: `pre-dump`, `dump --pre-copy`, and what becomes of rounds that no dump follows."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from checkout import TESTS
from command import Crckpt
from dump_moments import kill_below, orphans_of, wait_ended
from incremental import (
    MIB,
    NO_TRACKER,
    assert_complete,
    dump_incrementally,
    executable,
    keeper,
    mounted,
    restore_and_ask,
    trackers,
)
from keepers import keeper_socket
from remote import remote
from rounds import FEW_PAGES, PAGE, PAGES, Target
from trees import runs, wait_for

from crckpt.criu.find import find
from crckpt.errors import PreflightRefused
from crckpt.host.proc import read_process
from crckpt.ops.context import Context
from crckpt.ops.dump.dump import dump
from crckpt.ops.dump.request import DumpRequest, PreCopy
from crckpt.tracking.dump_basis import RoundBase
from crckpt.tracking.keeper.client import ENDED, KILLED, find_session
from crckpt.tracking.uffd_wp import UffdWp

PROGRAMS = TESTS / "programs"
UNCOMMITTED_REASON = "the tracker did not see the end of the last dump or round"

pytestmark = [pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER), pytest.mark.usefixtures("orphans_are_reaped")]


def copied(crckpt: Crckpt, target: Target, *words: str) -> dict[str, Any]:
    """The result of a round."""
    result: dict[str, Any] = crckpt.run("pre-dump", str(target.pid), "job", "--json", *words).document["result"]
    return result


def staged(place: Path) -> list[Path]:
    """The existing directories of rounds."""
    return [path for path in place.glob("*/*") if path.name.isdecimal()]


def test_dump_contains_only_pages_written_since_the_last_round(crckpt: Crckpt, target: Target) -> None:
    first = copied(crckpt, target)
    assert set(first) == {"job", "pid", "criu", "criu_passed_over", "tracked", "copied"}
    assert (first["copied"]["number"], first["tracked"]["base"]) == (1, None)
    assert PAGES <= first["copied"]["pages"] <= PAGES + FEW_PAGES
    for number in (2, 3):
        target.write()
        round_ = copied(crckpt, target)["copied"]
        assert round_["number"] == number
        assert len(target.written()) <= round_["pages"] <= len(target.written()) + FEW_PAGES
        assert round_["bytes"] == round_["pages"] * PAGE
    assert len(staged(crckpt.store / "tmp")) == 3
    checksum = target.write()
    result = crckpt.run("dump", str(target.pid), "job", "--json").document["result"]
    assert (result["tracked"]["rounds"], result["tracked"]["base"]) == (3, None)
    assert len(target.written()) <= result["tracked"]["written_pages"] <= len(target.written()) + FEW_PAGES
    assert result["checkpoint"]["parent"] is None
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert list((crckpt.store / "tmp").iterdir()) == [], "the rounds are in the checkpoint"
    after = dump_incrementally(crckpt, target)["tracked"]
    assert (after["base"], after["rounds"]) == (result["checkpoint"]["id"], 0)
    crckpt.run("verify", "--all")
    assert restore_and_ask(crckpt, target, result["checkpoint"]["id"], 3) == checksum


def test_checkpoint_from_which_a_round_counts_can_be_removed(crckpt: Crckpt, target: Target) -> None:
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    target.write()
    round_ = copied(crckpt, target)
    assert round_["tracked"]["base"] == first
    assert round_["copied"]["pages"] <= len(target.written()) + FEW_PAGES
    checksum = target.write()
    result = dump_incrementally(crckpt, target)
    assert (result["tracked"]["rounds"], result["tracked"]["base"]) == (1, first)
    assert result["checkpoint"]["parent"] == first
    assert result["checkpoint"]["statistics"]["inherited_pages"] >= PAGES - 2 * len(target.written()) - FEW_PAGES
    crckpt.run("rm", first)
    crckpt.run("gc")
    crckpt.run("verify", "--all")
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert restore_and_ask(crckpt, target, "job", 2) == checksum


def test_pre_copy_copies_rounds_and_then_dumps(crckpt: Crckpt, target: Target) -> None:
    for base in (None, "before"):
        checksum = target.write()
        result = crckpt.run("dump", str(target.pid), "job", "--pre-copy", "--json").document["result"]
        rounds = result["copying"]["rounds"]
        # The target writes nothing during the round, so no other round is needed.
        assert [one["number"] for one in rounds] == [1]
        assert rounds[0]["pages"] >= (PAGES if base is None else len(target.written()))
        assert result["tracked"]["rounds"] == len(rounds)
        assert (result["tracked"]["base"] is None) == (base is None)
        assert result["tracked"]["written_pages"] <= FEW_PAGES
        assert all(0 < one["frozen_ms"] < one["ms"] for one in rounds)
        assert_complete(crckpt, result["checkpoint"]["id"], target)
        assert list((crckpt.store / "tmp").iterdir()) == []
    assert restore_and_ask(crckpt, target, "job", 2) == checksum


@contextmanager
def rewriting(directory: Path) -> Iterator[int]:
    """The PID of a program that writes 128 MiB over and over again."""
    program = (
        f"import mmap; memory = mmap.mmap(-1, {128 * MIB}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        f"while True: memory[:] = bytes({128 * MIB}); open({str(directory / 'full')!r}, 'w').close()"
    )
    null = subprocess.DEVNULL
    argv = [sys.executable, "-c", program]
    process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
    try:
        wait_for((directory / "full").exists, 60, "the memory to be full")
        yield process.pid
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_tree_that_writes_quickly_gets_another_round(crckpt: Crckpt, tmp_path: Path) -> None:
    """The memory written during a round takes longer to copy than the stop of another round."""
    with rewriting(tmp_path) as pid:
        result = crckpt.run("dump", str(pid), "job", "--pre-copy", "--json").document["result"]
        assert len(result["copying"]["rounds"]) >= 2


def test_required_space_is_bounded_by_the_size_of_the_tree(tmp_path: Path) -> None:
    """Even if the tree writes quickly, space for the round and for all memory once more is enough."""
    again = f"rm -f {tmp_path}/full; until [ -e {tmp_path}/full ]; do :; done"
    run = f'{find(None, None).path} "$@"; status=$?\n[ "$1" != pre-dump ] || {{ {again}; {again}; }}\nexit $status'
    with rewriting(tmp_path) as pid, mounted(tmp_path / "staging", 340 * MIB):
        words = ("dump", str(pid), "job", "--pre-copy", "--max-rounds", "1", "--staging", str(tmp_path / "staging"))
        criu = executable(tmp_path / "criu", run)
        result = Crckpt(tmp_path / "store").run(*words, "--criu", str(criu), "--json").document["result"]
        assert len(result["copying"]["rounds"]) == 1


def test_dump_with_rounds_and_stop_ends_the_tree_and_can_be_restored(crckpt: Crckpt, target: Target) -> None:
    output = crckpt.run("dump", str(target.pid), "job", "--pre-copy", "--max-rounds", "1", "--stop").out
    assert re.search(r"^round 1: \d+ pages, [\d.]+ MiB in .*, frozen \d+ ms$", output, re.MULTILINE)
    assert "written since round 1" in output
    assert not runs(target.pid)
    checksum = target.report()[0]
    assert restore_and_ask(crckpt, target, "job", 0) == checksum


def test_freeze_estimate_is_reported_and_may_abort(crckpt: Crckpt, target: Target) -> None:
    words = ("dump", str(target.pid), "job", "--pre-copy")
    output = crckpt.run(*words, "--max-freeze", "1ms", "--abort-over", "--json", status=24).document["error"]
    assert re.fullmatch(
        r"the tree would be frozen for about \d+ ms, over the budget of 1 ms \(--max-freeze\); "
        "no checkpoint was made; the tree keeps running",
        output["message"],
    )
    assert crckpt.run("list", "--json").document["result"]["checkpoints"] == []
    assert keeper(crckpt, target)["base"].startswith(str(crckpt.store / "tmp")), "the rounds are kept"
    result = crckpt.run(*words, "--max-freeze", "1ms", "--max-rounds", "1", "--json").document["result"]
    assert result["copying"]["foreseen_ms"] > result["copying"]["max_freeze_ms"] == 1.0
    assert result["checkpoint"] is not None, "it was said, no more"
    assert result["copying"]["over_budget"]
    output = crckpt.run(*words, "--max-freeze", "1ms", "--max-rounds", "1").out
    assert re.search(r"^estimated freeze: \d+ ms, over the budget of 1 ms$", output, re.MULTILINE)
    assert re.search(r"^[0-9a-f]{12}  job: 1 process, frozen \d+ ms, over the budget of 1 ms, ", output, re.MULTILINE)
    output = crckpt.run(*words, "--max-freeze", "1ms", "--max-rounds", "1", "--stop", "--dry-run").out
    assert "budget" not in output, "nothing was frozen"
    result = crckpt.run(*words, "--max-freeze", "60s", "--abort-over", "--json").document["result"]
    assert len(result["copying"]["rounds"]) == 1, "the first one fits"
    assert 0 < result["copying"]["foreseen_ms"] < 60_000
    assert result["copying"]["over_budget"] is False
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_dump_with_a_freeze_limit_is_refused_if_its_rounds_are_lost(
    crckpt: Crckpt, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the copied rounds the freeze would be too long. They are lost with their tracker."""
    dumping = importlib.import_module("crckpt.ops.dump.checkpoint")
    copies = dumping.pre_copy

    def lost_after(*subject_and_places: Any) -> Any:
        copied_before = copies(*subject_and_places)
        os.kill(keeper(crckpt, target)["pid"], signal.SIGKILL)
        return copied_before

    # The test replaces `pre_copy`, because no step of crckpt is between the rounds and their use.
    monkeypatch.setattr(dumping, "pre_copy", lost_after)
    limits = PreCopy(5, max_freeze_ms=60_000, abort_over=True)
    context = Context(crckpt.store)
    with pytest.raises(PreflightRefused, match="the copied rounds can no longer be used") as refused:
        dump(DumpRequest(str(target.pid), "job", pre_copy=limits), context)
    assert refused.value.message.endswith("; no checkpoint was made; the tree keeps running")
    assert ENDED in refused.value.message
    target.look()
    assert crckpt.run("list", "--json").document["result"]["checkpoints"] == []
    monkeypatch.undo()
    assert_complete(crckpt, dump_incrementally(crckpt, target)["checkpoint"]["id"], target)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max-freeze", "100ms"), "--max-freeze needs --pre-copy\n"),
        (("--max-rounds", "3", "--abort-over"), "--max-rounds and --abort-over need --pre-copy\n"),
        (("--max-freeze", "soon"), "--max-freeze soon is not a time\n"),
        (("--pre-copy", "--abort-over"), "--abort-over needs --max-freeze"),
        (("--pre-copy", "--max-freeze", "soon"), "--max-freeze soon is not a time"),
        (("--pre-copy", "--no-incremental"), "--pre-copy cannot be combined with --no-incremental"),
    ],
)
def test_contradictory_options_for_rounds_are_usage_errors(
    crckpt: Crckpt, target: Target, words: tuple[str, ...], message: str
) -> None:
    error = crckpt.run("dump", str(target.pid), "job", *words, status=2).err
    assert f"crckpt: {message}" in error
    assert "hint: " in error
    assert not crckpt.store.exists()


def test_dry_run_of_a_dump_after_rounds_names_its_base(crckpt: Crckpt, target: Target) -> None:
    def planned(*words: str) -> str:
        return crckpt.run("dump", str(target.pid), "job", "--dry-run", *words).out

    why = "this tree has no tracker yet; the dump tries to start one"
    assert f"full dump: {why}\n" in planned("--incremental")
    with_rounds = planned("--pre-copy")
    assert "memory is copied in rounds first" in with_rounds
    assert f"\nwithout rounds it would be a full dump: {why}\n" in with_rounds
    assert "full dump" not in planned()
    assert [tracker for tracker in trackers(crckpt) if tracker["root"] == target.pid] == []
    copied(crckpt, target)
    assert "incremental: what was written since round 1\n" in planned()
    checkpoint = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    assert f"incremental: what was written since {checkpoint[:12]}\n" in planned()
    assert "full dump: --no-incremental was given\n" in planned("--no-incremental")


def test_copied_rounds_are_removed_when_their_tracker_ends(crckpt: Crckpt, target: Target) -> None:
    copied(crckpt, target)
    assert "round 1" in crckpt.run("ps").out
    crckpt.run("ps", "--end", str(target.pid))
    assert list((crckpt.store / "tmp").iterdir()) == []
    copied(crckpt, target)
    os.kill(keeper(crckpt, target)["pid"], signal.SIGTERM)
    wait_for(lambda: list((crckpt.store / "tmp").iterdir()) == [], 60, "the rounds to go with what kept them")
    copied(crckpt, target)
    os.kill(target.pid, signal.SIGKILL)
    wait_for(lambda: list((crckpt.store / "tmp").iterdir()) == [], 60, "the rounds to go with the tree")


@pytest.mark.parametrize("what", ["the tree ends", "it is told to end", "it is terminated"])
def test_copied_rounds_are_kept_while_a_dump_needs_them(crckpt: Crckpt, target: Target, what: str) -> None:
    copied(crckpt, target)
    root = read_process(target.pid)
    assert root is not None
    dump = find_session(root)
    assert dump is not None
    keeping = dump.describe().pid
    with closing(dump), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        base = dump.begin().base
        assert isinstance(base, RoundBase)
        assert base.number == 1
        if what == "the tree ends":
            os.kill(target.pid, signal.SIGKILL)
            os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        elif what == "it is terminated":
            os.kill(keeping, signal.SIGTERM)
        else:
            other.connect(str(keeper_socket(root)))
            other.sendall(b'{"do": "end"}')
        # The tracker may read the request to end only after the first question.
        assert dump.describe().dumping == dump.describe().dumping == os.getpid()
        assert staged(crckpt.store / "tmp")
    wait_for(lambda: list((crckpt.store / "tmp").iterdir()) == [], 60, "the rounds to go with the dump")
    wait_ended([keeping])
    assert keeper_socket(root).exists() == (what == "it is terminated"), "a next dump says that it has ended"


def test_gc_removes_the_rounds_of_a_killed_tracker(crckpt: Crckpt, target: Target, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    copied(crckpt, target, "--staging", str(staging))
    (left,) = staged(staging)
    assert left.parent.stat().st_mode & 0o777 == 0o700
    crckpt.run("gc")
    assert left.exists(), "its owner lives"
    os.kill(keeper(crckpt, target)["pid"], signal.SIGKILL)
    wait_for(
        lambda: not [tracker for tracker in trackers(crckpt) if tracker["root"] == target.pid], 60, "the keeper to end"
    )
    crckpt.run("gc")
    assert list(staging.iterdir()) == []
    assert list((crckpt.store / "tmp").iterdir()) == []
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["why_full"] == KILLED
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_damaged_round_makes_the_next_dump_full(crckpt: Crckpt, target: Target) -> None:
    copied(crckpt, target)
    for pages in crckpt.store.glob("tmp/*/1/pages-*.img"):
        os.truncate(pages, PAGE)
    target.write()
    error = crckpt.run("dump", str(target.pid), "job", "--json", status=13).document["error"]
    assert error["message"].endswith("no checkpoint was made; the tree keeps running")
    assert error["hint"] == "try again: the next dump of this tree is full"
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_pre_dump_without_a_tracker_is_refused(crckpt: Crckpt, target: Target) -> None:
    target.send_signal(signal.SIGURG)
    output = crckpt.run("pre-dump", str(target.pid), "job", "--json", status=20).document["error"]
    assert re.match(rf"nothing was copied: PID {target.pid} has an O_DIRECT descriptor", output["message"])
    assert output["hint"] == f"crckpt dump {target.pid} job makes a full checkpoint"
    words = ("dump", str(target.pid), "job", "--pre-copy", "--json")
    error = crckpt.run(*words, "--max-freeze", "1ms", "--abort-over", status=24).document["error"]
    assert "; no rounds were copied: PID" in error["message"]
    assert "copied rounds" not in error["hint"]
    result = crckpt.run(*words).document["result"]
    assert result["copying"]["rounds"] == []
    assert "has an O_DIRECT descriptor" in result["tracked"]["why_full"]
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_tracker_killed_during_the_rounds_makes_the_dump_full(crckpt: Crckpt, target: Target, tmp_path: Path) -> None:
    """The copied rounds are useless: the dump is full and says why."""
    kept = tmp_path / "keeper"
    kill = f'[ "$1" != pre-dump ] || kill -KILL $(cat {kept})'
    criu = executable(tmp_path / "criu", f'{find(None, None).path} "$@"; status=$?\n{kill}\nexit $status')
    crckpt.run("dump", str(target.pid), "job", "--incremental", "--criu", str(criu))
    kept.write_text(str(keeper(crckpt, target)["pid"]))
    words = ("--pre-copy", "--criu", str(criu), "--json")
    result = crckpt.run("dump", str(target.pid), "job", *words).document["result"]
    tracked = result["tracked"]
    assert (tracked["base"], tracked["rounds"], tracked["left_pages"]) == (None, 0, 0)
    assert tracked["why_full"] == ENDED
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_removed_base_makes_the_dump_full(crckpt: Crckpt, target: Target) -> None:
    first = dump_incrementally(crckpt, target)["checkpoint"]["id"]
    copied(crckpt, target)
    crckpt.run("rm", first)
    crckpt.run("gc")
    round_ = copied(crckpt, target)
    assert (
        round_["tracked"]["why_full"]
        == f"checkpoint {first[:12]}, the tree's last one, was removed or is in another store"
    )
    assert (round_["copied"]["number"], round_["copied"]["pages"] >= PAGES) == (1, True)
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["rounds"] == 1
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_dump_into_another_store_is_full(crckpt: Crckpt, target: Target, tmp_path: Path) -> None:
    dump_incrementally(crckpt, target)
    copied(crckpt, target)
    other = Crckpt(tmp_path / "other")
    result = dump_incrementally(other, target)
    assert result["tracked"]["base"] is None
    assert "was removed or is in another store" in result["tracked"]["why_full"]
    assert_complete(other, result["checkpoint"]["id"], target)


def test_process_forked_between_rounds_is_copied_in_full(crckpt: Crckpt, target: Target) -> None:
    copied(crckpt, target)
    target.send_signal(signal.SIGWINCH)
    (child,) = map(int, Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split())
    assert copied(crckpt, target)["tracked"]["whole"] == [f"PID {child}: the process is new"]
    target.write()
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["written_pages"] < PAGES // 2
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert_complete(crckpt, result["checkpoint"]["id"], target, child)


def test_program_replaced_between_rounds_makes_the_dump_full(crckpt: Crckpt, target: Target) -> None:
    copied(crckpt, target)
    target.start_afresh()
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["why_full"] == f"PID {target.pid}: the program was replaced (exec)"
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_stopped_tree_stays_stopped(crckpt: Crckpt, target: Target) -> None:
    """CRIU copies nothing of a stopped process in a round: all is left to the dump."""
    os.kill(target.pid, signal.SIGSTOP)
    wait_for(lambda: psutil.Process(target.pid).status() == psutil.STATUS_STOPPED, 60, "the target to stop")
    copied(crckpt, target)
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["whole"] == [f"PID {target.pid}: a round copies nothing of a stopped process"]
    assert psutil.Process(target.pid).status() == psutil.STATUS_STOPPED
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    os.kill(target.pid, signal.SIGCONT)
    target.look()


def test_memory_shared_since_a_fork_stays_shared_after_a_round(crckpt: Crckpt, target: Target) -> None:
    """Reading the memory could give each process its own copy, and so use more memory than exists."""
    target.send_signal(signal.SIGWINCH)
    (child,) = psutil.Process(target.pid).children()
    wait_for(lambda: of_its_own(child.pid) > 0, 60, "the child to write its page")
    before = [of_its_own(pid) for pid in (target.pid, child.pid)]
    assert copied(crckpt, target)["copied"]["pages"] >= 2 * PAGES
    after = [of_its_own(pid) for pid in (target.pid, child.pid)]
    assert max(now - then for now, then in zip(after, before, strict=True)) < MIB
    result = dump_incrementally(crckpt, target)
    for pid in (target.pid, child.pid):
        assert_complete(crckpt, result["checkpoint"]["id"], target, pid)


def of_its_own(pid: int) -> int:
    """The number of written bytes that the process shares with no other process."""
    found = re.search(r"^Private_Dirty: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def test_memory_unreadable_during_a_round_is_in_the_dump(crckpt: Crckpt, target: Target) -> None:
    """The memory is copied in the freeze.

    If it is readable by then, the dump is full. With soft-dirty bits rounds copy while the tree is stopped, and CRIU
    makes the memory readable.
    """
    target.send_signal(signal.SIGIO)
    round_ = copied(crckpt, target)
    is_left = round_["tracked"]["tracker"] == UffdWp.name
    assert (round_["copied"]["pages"] <= FEW_PAGES) == is_left
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["rounds"] == 1
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    copied(crckpt, target)
    checksum = target.send_signal(signal.SIGIO)
    result = dump_incrementally(crckpt, target)
    assert result["tracked"]["rounds"] == (0 if is_left else 1)
    assert ("does not match what was copied before" in result["tracked"]["why_full"]) == is_left
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    assert restore_and_ask(crckpt, target, "job", 2) == checksum


def test_full_disk_fails_the_round_and_the_tree_stays_tracked(target: Target, tmp_path: Path) -> None:
    with mounted(tmp_path / "store", 64 * MIB) as crckpt:
        copied(crckpt, target)
        (tmp_path / "store/filler").write_bytes(bytes(26 * MIB))
        for _ in range(40):
            target.write()
        error = crckpt.run("pre-dump", str(target.pid), "job", "--json", "--no-preflight", status=10).document["error"]
        assert "no space" in error["message"].lower()
        assert error["message"].endswith("no checkpoint was made; the tree keeps running")
        # The keeper hears of it when crckpt has ended.
        wait_for(lambda: not staged(tmp_path / "store/tmp"), 60, "what was copied, which is of no use, to make room")
        (tmp_path / "store/filler").unlink()
        result = dump_incrementally(crckpt, target)
        assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
        assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_dump_after_rounds_needs_little_space(target: Target, tmp_path: Path) -> None:
    """The disk with the rounds has no space for the whole tree again."""
    with mounted(tmp_path / "staging", 60 * MIB):
        crckpt = Crckpt(tmp_path / "store")
        words = ("dump", str(target.pid), "job", "--staging", str(tmp_path / "staging"), "--json")
        result = crckpt.run(*words, "--pre-copy").document["result"]
        assert len(result["copying"]["rounds"]) == 1
        assert_complete(crckpt, result["checkpoint"]["id"], target)
        copied(crckpt, target, "--staging", str(tmp_path / "staging"))
        result = crckpt.run(*words).document["result"]
        assert result["tracked"]["rounds"] == 1
        assert_complete(crckpt, result["checkpoint"]["id"], target)


@pytest.mark.parametrize("who", ["crckpt", "CRIU"])
def test_interrupted_round_makes_the_next_dump_full(crckpt: Crckpt, target: Target, who: str) -> None:
    """The round has already reset the bits. The tree keeps running."""
    copied(crckpt, target)
    target.write()
    process = crckpt.start("pre-dump", str(target.pid), "job", "--json")
    while not any(crckpt.store.glob("tmp/*/2/pages-1.img")):
        assert process.poll() is None
    if who == "crckpt":
        wait_ended(orphans_of(process))
    else:
        kill_below(process.pid)
        output, _ = process.communicate()
        # It may have been quicker.
        assert process.returncode in (0, 21), output
        assert (process.returncode == 0) == (keeper(crckpt, target)["base"] != "")
    target.look()
    result = dump_incrementally(crckpt, target)
    if result["tracked"]["rounds"] == 0:
        assert (result["tracked"]["rounds"], result["tracked"]["why_full"]) == (0, UNCOMMITTED_REASON)
        assert staged(crckpt.store / "tmp") == []
    assert_complete(crckpt, result["checkpoint"]["id"], target)


def test_reported_freeze_matches_the_one_in_the_tree(crckpt: Crckpt, tmp_path: Path) -> None:
    null = subprocess.DEVNULL
    argv = [sys.executable, str(PROGRAMS / "clock_gap.py"), str(tmp_path), "64"]
    process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
    try:
        gap = tmp_path / "gap"
        wait_for(gap.exists, 60, "the program")

        def longest() -> float:
            gap.unlink(missing_ok=True)
            os.kill(process.pid, signal.SIGUSR1)
            wait_for(gap.exists, 60, "the gap")
            return float(gap.read_text())

        def read_wait_ms() -> float:
            """The milliseconds that the process was ready to run and waited for a CPU."""
            return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e6

        # The time for which CRIU waits for a CPU counts as freeze. With a real-time priority it does not wait.
        ahead = dataclasses.replace(crckpt, before=("chrt", "--fifo", "1"))
        tries = []
        for _ in range(5):
            longest()
            before = read_wait_ms()
            result = ahead.run("dump", str(process.pid), "job", "--pre-copy", "--json").document["result"]
            seen, waits = longest(), read_wait_ms() - before
            frozen = [one["frozen_ms"] for one in result["copying"]["rounds"]]
            frozen.append(result["checkpoint"]["statistics"]["frozen_ms"])
            assert seen >= 0.9 * max(frozen)
            tries.append((frozen, seen, waits))
            if seen <= 2 * max(frozen) + waits:
                break
        else:
            pytest.fail(f"frozen, seen and waited, in ms: {tries}")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("limits", "status"), [("128:4096", 0), ("128:128", 24)], ids=["raised", "refused"])
def test_rounds_of_a_large_tree_raise_the_descriptor_limit(crckpt: Crckpt, limits: str, status: int) -> None:
    """CRIU moves memory into pipes. crckpt raises the limit as needed, or leaves the tree alone."""
    code = "import mmap; m = mmap.mmap(-1, 200 << 20, mmap.MAP_PRIVATE)\nfor at in range(0, len(m), 4096): m[at] = 1"
    with remote() as program:
        program.ask(code)
        without = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
        words = ("dump", str(program.pid), "job", "--pre-copy", "--max-rounds", "2", "--json")
        limited = dataclasses.replace(crckpt, before=("prlimit", f"--nofile={limits}", *without))
        result = limited.run(*words, status=status)
        if status:
            (cause,) = result.document["error"]["causes"]
            assert re.search(
                r"CRIU needs about \d+ descriptors to copy the tree while it runs, but may open only 128", cause
            )
            assert "LimitNOFILE=" in result.document["error"]["hint"]
            assert crckpt.run("list", "--json").document["result"]["checkpoints"] == []
        else:
            rounds = result.document["result"]["copying"]["rounds"]
            assert rounds[0]["bytes"] >= 200 << 20
            assert result.document["result"]["tracked"]["left_pages"] >= 50_000
        assert program.ask("answer = sum(m[at] for at in range(0, len(m), 4096))") == 51_200
