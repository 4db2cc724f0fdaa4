"""Show and compare checkpoints of a real process: the output matches the process's own report."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cases import CASES
from command import Crckpt
from target_processes import running, state
from trees import PROGRAMS, PYTHON, Case, started, wait_for

PAGE = os.sysconf("SC_PAGE_SIZE")
VARIABLE = "CRCKPT_TEST_SECRET=swordfish = two words"
CHANGING = Case("changing", ("/usr/bin/env", VARIABLE, PYTHON, f"{PROGRAMS}/changing.py", "{workdir}"))
TEXT = f"known-{PAGE:07d}-text"


@dataclass(frozen=True)
class TwoCheckpoints:
    """Two checkpoints of a tree, `job~1` and `job`, and the tree's report at each."""

    crckpt: Crckpt
    pid: int
    workdir: Path
    before: Any
    after: Any

    def show(self, *words: str, ref: str = "job~1") -> Any:
        """The result of `show`."""
        return self.crckpt.run("show", ref, *words, "--json").document["result"]


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> TwoCheckpoints:
    """Two checkpoints of a tree that has ended."""
    crckpt = Crckpt(tmp_path_factory.mktemp("inspect") / "store")
    with started(CHANGING) as tree:
        before = tree.facts()[""]
        crckpt.run("dump", str(tree.pid), "job")
        (tree.workdir / "change").touch()
        wait_for(lambda: "child" in tree.facts()[""], 60, "the program to change")
        after = tree.facts()[""]
        crckpt.run("dump", str(tree.pid), "job")
        return TwoCheckpoints(crckpt, tree.pid, tree.workdir, before, after)


def test_ps_section_lists_processes_threads_and_states(two_checkpoints: TwoCheckpoints) -> None:
    """The section has the tree, its threads and their states."""
    (process,) = two_checkpoints.show("--ps")["ps"]
    assert (process["pid"], process["state"], process["uid"]) == (two_checkpoints.pid, "alive", 0)
    assert process["cwd"] == str(two_checkpoints.workdir)
    assert [thread["tid"] for thread in process["threads"]] == [two_checkpoints.pid, two_checkpoints.before["left"]]
    root, child = two_checkpoints.show("--ps", ref="job")["ps"]
    assert (child["pid"], child["ppid"]) == (two_checkpoints.after["child"], root["pid"])
    output = two_checkpoints.crckpt.run("show", "job", "--ps").out
    assert f"\n  {child['pid']} {child['comm']}, alive" in output
    assert f"\n  thread {two_checkpoints.after['came']} " in output


def test_ps_section_names_the_system_calls_of_threads(crckpt: Crckpt) -> None:
    program = (
        "import select, threading, time; threading.Thread(target=time.sleep, args=(999,), daemon=True).start()\n"
        "print('ready', flush=True); select.poll().poll()"
    )
    with running(PYTHON, "-c", program) as process:
        wait_for(lambda: state(process.pid) == "S", 60, "the wait to begin")
        crckpt.run("dump", str(process.pid), "job")
    (found,) = crckpt.run("show", "job", "--ps", "--json").document["result"]["ps"]
    assert [thread["system_call"] for thread in found["threads"]] == ["poll", "clock_nanosleep"]
    output = crckpt.run("show", "job", "--ps").out
    assert f"\n{found['pid']} {found['comm']}, alive, in poll, uid 0" in output
    assert f"\n  thread {found['threads'][1]['tid']} {found['comm']}, in clock_nanosleep\n" in output


def test_files_section_lists_open_files(two_checkpoints: TwoCheckpoints) -> None:
    """The section has path, access, offset and size, and whether the file is deleted."""
    files = {file["fd"]: file for file in two_checkpoints.show("--files")["files"]}
    fds = two_checkpoints.before["fds"]
    data, log, gone = (files[fds[name]] for name in ("data", "log", "gone"))
    assert {file["pid"] for file in files.values()} == {two_checkpoints.pid}
    assert (data["path"], data["access"], data["offset"], data["size"]) == (
        str(two_checkpoints.workdir / "data"),
        "r",
        4321,
        10_000,
    )
    assert (log["access"], log["flags"], log["deleted"]) == ("w", ["append"], False)
    assert (gone["path"], gone["access"], gone["offset"], gone["size"]) == (
        str(two_checkpoints.workdir / "gone"),
        "rw",
        777,
        777,
    )
    assert [file["fd"] for file in files.values() if file["deleted"]] == [fds["gone"]]
    (line,) = (
        line for line in two_checkpoints.crckpt.run("show", "job~1", "--files").out.splitlines() if "/data" in line
    )
    assert line.split()[:6] == [str(two_checkpoints.pid), str(fds["data"]), "r", "4321", "10000", "file"]


def test_sockets_section_lists_sockets(two_checkpoints: TwoCheckpoints) -> None:
    """The section lists family, type, state, addresses and holders."""
    unix, tcp = sorted(two_checkpoints.show("--sockets")["sockets"], key=lambda found: found["family"], reverse=True)
    fds = two_checkpoints.before["fds"]
    assert unix == {
        "family": "unix",
        "type": "stream",
        "protocol": "",
        "state": "listen",
        "local": str(two_checkpoints.workdir / "listen.sock"),
        "remote": "",
        "deleted": False,
        "holders": [{"pid": two_checkpoints.pid, "fd": fds["unix"]}],
    }
    assert (tcp["family"], tcp["protocol"], tcp["state"]) == ("inet", "tcp", "listen")
    assert tcp["local"] == f"127.0.0.1:{two_checkpoints.before['port']}"
    assert tcp["holders"] == [{"pid": two_checkpoints.pid, "fd": fds["tcp"]}]
    shared = [found["holders"] for found in two_checkpoints.show("--sockets", ref="job")["sockets"]]
    assert all(
        [holder["pid"] for holder in holders] == [two_checkpoints.pid, two_checkpoints.after["child"]]
        for holders in shared
    )


def test_maps_section_lists_mappings(two_checkpoints: TwoCheckpoints) -> None:
    """The section lists addresses, permissions, written and resident pages (unknown for file mappings)."""
    maps = {found["start"]: found for found in two_checkpoints.show("--maps")["maps"]}
    pages, shared = (maps[two_checkpoints.before[name]] for name in ("pages", "shared"))
    assert (pages["path"], pages["permissions"]) == (str(two_checkpoints.workdir / "pages"), "rw-p")
    assert (pages["bytes"], pages["resident_bytes"], pages["dirty_bytes"]) == (256 * PAGE, None, 64 * PAGE)
    assert (shared["permissions"], shared["bytes"]) == ("rw-s", 64 * PAGE)
    assert (shared["resident_bytes"], shared["dirty_bytes"]) == (6 * PAGE, 6 * PAGE)
    assert any(found["kind"] == "stack" and found["dirty_bytes"] for found in maps.values())
    (line,) = (
        line
        for line in two_checkpoints.crckpt.run("show", "job~1", "--maps").out.splitlines()
        if line.endswith("/pages")
    )
    start = two_checkpoints.before["pages"]
    addresses = f"{start:x}-{start + 256 * PAGE:x}"
    assert line.split()[1:] == [addresses, "rw-p", "1.0", "MiB", "256.0", "KiB", str(two_checkpoints.workdir / "pages")]


def test_maps_section_agrees_with_the_kernel(tmp_path: Path) -> None:
    """Each mapping matches /proc. The program waits, and CRIU's code has written to its memory before the dump."""
    crckpt = Crckpt(tmp_path / "store")
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        ["sleep", "600"], cwd="/", stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    )
    try:
        wait_for(lambda: b"nanosleep" in Path(f"/proc/{process.pid}/wchan").read_bytes(), 60, "it to sleep")
        crckpt.run("dump", str(process.pid), "job")
        live = _live_maps(process.pid)
    finally:
        process.kill()
        process.wait()
    shown = crckpt.run("show", "job", "--maps", "--json").document["result"]["maps"]
    private = [found for found in shown if found["kind"] not in ("vdso", "vvar", "vsyscall")]
    assert {found["start"]: found["dirty_bytes"] for found in private} == {
        start: live[start]["Anonymous"] + live[start]["Swap"] for start in (found["start"] for found in private)
    }
    resident = {found["start"]: found["resident_bytes"] for found in private if not found["path"]}
    assert resident == {start: live[start]["Rss"] + live[start]["Swap"] for start in resident}
    assert all(found["resident_bytes"] is None for found in private if found["path"])
    (vdso,) = (found for found in shown if found["kind"] == "vdso")
    assert (vdso["dirty_bytes"], vdso["resident_bytes"]) == (0, vdso["bytes"])


def _live_maps(pid: int) -> dict[int, dict[str, int]]:
    """The sizes of each map in bytes, by its start. Source: proc_pid_smaps(5)."""
    maps: dict[int, dict[str, int]] = {}
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            maps[int(name.split("-")[0], 16)] = counts = {}
        elif words[1:] == ["kB"]:
            counts[name[:-1]] = int(words[0]) << 10
    return maps


def test_show_prints_the_environment_only_with_the_option_env(two_checkpoints: TwoCheckpoints) -> None:
    """The environment is never shown without the option."""
    (process,) = two_checkpoints.show("--env")["env"]
    assert process["pid"] == two_checkpoints.pid
    assert VARIABLE in process["variables"]
    assert f"HOME={two_checkpoints.workdir}" in process["variables"]
    assert f"\n  {VARIABLE}\n" in two_checkpoints.crckpt.run("show", "job", "--env").out
    rest = two_checkpoints.crckpt.run("show", "job", "--ps", "--files", "--sockets", "--maps").out
    assert "swordfish" not in rest + two_checkpoints.crckpt.run("show", "job").out


def test_show_strings_finds_text_across_pages(two_checkpoints: TwoCheckpoints) -> None:
    """A text across the border of two pages is found at its address in each process."""
    found = two_checkpoints.show("--strings", r"known-\d+-te.t")["strings"]
    (match_before,) = (match for match in found if match["address"] == two_checkpoints.before["text"])
    assert (match_before["pid"], match_before["text"]) == (two_checkpoints.pid, TEXT)
    assert match_before["start"] <= match_before["address"] < match_before["end"]
    windows = two_checkpoints.show("--strings", r"^known-\d+-window$")["strings"]
    assert [match["address"] for match in windows if match["map"] == "memfd:window"] == [
        two_checkpoints.before["window"]
    ]
    matches = two_checkpoints.show("--strings", f"^{TEXT}$", ref="job")["strings"]
    pids = [match["pid"] for match in matches if match["address"] == two_checkpoints.after["text"]]
    assert pids == [two_checkpoints.pid, two_checkpoints.after["child"]]
    assert (
        f"  {two_checkpoints.before['text']:x}  {TEXT}\n"
        in two_checkpoints.crckpt.run("show", "job~1", "--strings", TEXT).out
    )
    assert two_checkpoints.show("--strings", "not-in-(any-)map{7}")["strings"] == []
    assert "regular expression" in two_checkpoints.crckpt.run("show", "job", "--strings", "(", status=2).err


def test_show_with_several_section_options_prints_all_of_them(two_checkpoints: TwoCheckpoints) -> None:
    """The JSON document has only the requested sections."""
    usual = set(two_checkpoints.show("--ps")) - {"ps"}
    together = two_checkpoints.show("--ps", "--files", "--sockets", "--maps", "--env", "--strings", TEXT)
    assert set(together) == usual | {"ps", "files", "sockets", "maps", "env", "strings"}


def test_diff_lists_added_and_removed_processes_threads_and_descriptors(two_checkpoints: TwoCheckpoints) -> None:
    """Added and removed objects are listed by name."""
    result = two_checkpoints.crckpt.run("diff", "job~1", "job", "--json").document["result"]
    assert set(result) == {"first", "second", "come", "gone", "changed", "pages"}
    assert [process["pid"] for process in result["come"]] == [two_checkpoints.after["child"]]
    assert result["come"][0]["pages"] > 100
    assert result["gone"] == []
    (change,) = result["changed"]
    assert (change["threads_come"], change["threads_gone"]) == (
        [two_checkpoints.after["came"]],
        [two_checkpoints.before["left"]],
    )
    fds, now = two_checkpoints.before["fds"], two_checkpoints.after["fds"]
    opened, closed = change["opened"], change["closed"]
    # Python keeps a descriptor of a file that it maps.
    assert {Path(file["path"]).name: file["fd"] for file in opened["files"]}["opened"] == now["opened"]
    assert {Path(file["path"]).name for file in opened["files"]} == {"opened", "coming"}
    assert {Path(file["path"]).name: file["fd"] for file in closed["files"]}["log"] == fds["log"]
    assert {Path(file["path"]).name for file in closed["files"]} == {"log", "going"}
    assert [(socket["protocol"], socket["holders"]) for socket in opened["sockets"]] == [
        ("udp", [{"pid": two_checkpoints.pid, "fd": now["udp"]}])
    ]
    assert [socket["local"] for socket in closed["sockets"]] == [str(two_checkpoints.workdir / "listen.sock")]


def test_diff_counts_changed_new_and_removed_pages_of_each_map(two_checkpoints: TwoCheckpoints) -> None:
    """A page that was written with the same bytes does not count as changed."""
    result = two_checkpoints.crckpt.run("diff", "job~1", "job", "--json").document["result"]
    (change,) = result["changed"]
    maps = {found["start"]: (found["state"], *found["pages"].values()) for found in change["maps"]}
    assert maps[two_checkpoints.before["pages"]] == ("", 7, 11, 0)
    assert maps[two_checkpoints.before["shared"]] == ("", 2, 0, 0)
    by_name = {found["map"]: (found["state"], *found["pages"].values()) for found in change["maps"]}
    assert by_name[str(two_checkpoints.workdir / "going")] == ("gone", 0, 0, 5)
    assert by_name[str(two_checkpoints.workdir / "coming")] == ("new", 0, 3, 0)
    assert result["pages"] == {
        name: sum(found["pages"][name] for found in change["maps"]) for name in ("changed", "new", "gone")
    }
    output = two_checkpoints.crckpt.run("diff", "job~1", "job").out
    assert f"+ process {two_checkpoints.after['child']} " in output
    (line,) = (line for line in output.splitlines() if "new map" in line and line.endswith("/coming"))
    assert line.split()[1:] == ["rw-p", "3", "new", "map", f"{two_checkpoints.workdir}/coming"]
    assert "\nmemory: " in output


def test_diff_reversed_swaps_added_and_removed(two_checkpoints: TwoCheckpoints) -> None:
    """Added becomes removed, and a checkpoint does not differ from itself."""
    forward, backward = (
        two_checkpoints.crckpt.run("diff", *refs, "--json").document["result"]
        for refs in (("job~1", "job"), ("job", "job~1"))
    )
    assert (forward["come"], forward["gone"]) == (backward["gone"], backward["come"])
    assert (forward["pages"]["new"], forward["pages"]["gone"]) == (backward["pages"]["gone"], backward["pages"]["new"])
    assert forward["pages"]["changed"] == backward["pages"]["changed"]
    assert two_checkpoints.crckpt.run("diff", "job", "job").out.endswith("\nnothing differs\n")


def test_diff_lists_another_program_under_the_same_pid_as_removed_and_added(tmp_path: Path) -> None:
    """The memory of the two programs is not compared."""
    crckpt = Crckpt(tmp_path / "store")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    nothing = subprocess.DEVNULL
    words = ["sh", "-c", 'read word <"$0"; exec sleep 600', str(fifo)]
    process = subprocess.Popen(words, cwd="/", stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    try:
        comm = Path(f"/proc/{process.pid}/comm")
        wait_for(lambda: comm.read_text() == "sh\n", 60, "the shell")
        crckpt.run("dump", str(process.pid), "job")
        fifo.write_text("go\n")
        wait_for(lambda: comm.read_text() == "sleep\n", 60, "the other program")
        crckpt.run("dump", str(process.pid), "job", "--job-of-another-program")
    finally:
        process.kill()
        process.wait()
    result = crckpt.run("diff", "job~1", "job", "--json").document["result"]
    assert [[(one["pid"], one["comm"]) for one in result[name]] for name in ("gone", "come")] == [
        [(process.pid, "sh")],
        [(process.pid, "sleep")],
    ]
    assert result["changed"] == []


def test_diff_compares_processes_restored_in_between(tmp_path: Path) -> None:
    """A restored process counts as the same process."""
    crckpt = Crckpt(tmp_path / "store")
    with started(next(case for case in CASES if case.name == "family")) as tree:
        crckpt.run("dump", str(tree.pid), "job", "--stop")
        tree.wait_gone()
        crckpt.run("restore", "job", "--detach")
        crckpt.run("dump", str(tree.pid), "job")
        result = crckpt.run("diff", "job~1", "job", "--json").document["result"]
    assert (result["gone"], result["come"]) == ([], [])
    assert tree.pid in [change["pid"] for change in result["changed"]]


def test_show_and_diff_refuse_a_damaged_checkpoint(two_checkpoints: TwoCheckpoints, tmp_path: Path) -> None:
    """Nothing is printed about a damaged checkpoint."""
    store = tmp_path / "store"
    shutil.copytree(two_checkpoints.crckpt.store, store)
    for pack in store.glob("packs/*/*.pack"):
        content = bytearray(pack.read_bytes())
        for at in range(100, len(content) // 2, 4096):
            content[at] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(content)
    damaged = Crckpt(store)
    for words in (("show", "job", "--env"), ("show", "job", "--strings", "x"), ("diff", "job~1", "job")):
        document = damaged.run(*words, "--json", status=13).document
        assert (document["status"], document["error"]["code"]) == ("error", 13)
