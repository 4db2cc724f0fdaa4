"""Every command once, on a real tree, as text and as JSON: its keys are what scripts rely on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cases import CASES
from command import Crckpt
from trees import Tree, started, wait_for

CRIU = "/usr/local/lib/crckpt/criu/criu"

SUMMARY = {"id", "job", "created", "created_utc", "in_future", "parent", "stopped", "note", "processes", "statistics"}
STATISTICS = {
    "frozen_ms",
    "dump_ms",
    "commit_ms",
    "raw_bytes",
    "new_bytes",
    "stored_bytes",
    "pages",
    "zero_pages",
    "shared_pages",
    "copied_bytes",
    "inherited_pages",
}
KEYS = {
    "dump": {
        "job",
        "pid",
        "dry_run",
        "committing",
        "stopped",
        "root_ended",
        "criu",
        "criu_passed_over",
        "command",
        "reasons",
        "warnings",
        "unreaped",
        "tracked",
        "copying",
        "rehearsed",
        "checkpoint",
    },
    "restore": {
        "checkpoint",
        "dry_run",
        "pid",
        "restore_ms",
        "criu",
        "criu_passed_over",
        "command",
        "warnings",
        "passed_over",
        "program_status",
        "terminal",
    },
    "show": SUMMARY | {"tags", "move", "options", "host", "tree", "files", "sockets"},
    "core": {"id", "pid", "comm", "threads", "executable", "path", "size", "held"},
    "verify": {"checkpoints", "packs", "bytes", "damages", "intact"},
    "tag": {"job", "tag", "id"},
    "rm": {"removed", "lifted_locks", "dry_run", "bytes"},
    "gc": {"packs", "leftovers", "bytes", "dry_run"},
    "export": {"id", "directory", "command"},
    "import": SUMMARY,
    "doctor": {"able", "facts", "fixes"},
}


@pytest.fixture
def family() -> Iterator[Tree]:
    """A tree of several processes."""
    with started(next(case for case in CASES if case.name == "family")) as tree:
        yield tree


def test_json_documents_have_the_documented_keys(crckpt: Crckpt, family: Tree, tmp_path: Path) -> None:
    """Each command has one document with a schema: renaming a key breaks scripts."""
    images = str(tmp_path / "images")
    pid = str(family.pid)
    calls = {
        "dump": ("dump", pid, "job", "--note", "by hand"),
        "show": ("show", "job"),
        "core": ("core", "job", "--output", str(tmp_path / "core")),
        "verify": ("verify", "--all"),
        "tag": ("tag", "job", "kept"),
        "export": ("export", "job:kept", images),
        "import": ("import", images, "again"),
        "restore": ("restore", "job", "--dry-run", "--new-pid-namespace", "--no-preflight"),
        "rm": ("rm", "again"),
        "gc": ("gc", "--dry-run"),
        "doctor": ("doctor",),
    }
    for name, words in calls.items():
        document = crckpt.run(*words, "--json").document
        assert {key: document[key] for key in ("schema", "command", "status")} == {
            "schema": 1,
            "command": name,
            "status": "ok",
        }
        assert set(document["result"]) == KEYS[name], name
    listing = crckpt.run("list", "--json").document["result"]["checkpoints"]
    assert [set(entry) for entry in listing] == [SUMMARY | {"tags", "move", "damaged"}]
    assert listing[0]["tags"] == ["kept"]
    created = datetime.fromisoformat(listing[0]["created"])
    # The format of jq's fromdate.
    assert datetime.strptime(listing[0]["created_utc"], "%Y-%m-%dT%H:%M:%S%z") == created.replace(microsecond=0)
    assert listing[0]["note"] == "by hand"
    assert set(listing[0]["statistics"]) == STATISTICS


def test_show_prints_processes_files_and_sizes(crckpt: Crckpt, family: Tree) -> None:
    """The text and the JSON document contain the names and sizes."""
    crckpt.run("dump", str(family.pid), "job")
    shown = crckpt.run("show", "job").out
    document = crckpt.run("show", "job", "--json").document["result"]
    pids = {process["pid"] for process in document["tree"]}
    assert pids == set(family.pids())
    assert all(str(pid) in shown for pid in pids)
    assert "family.py" in shown
    assert all(process["memory_bytes"] > 0 for process in document["tree"])


def test_second_checkpoint_stores_only_changed_pages(crckpt: Crckpt, family: Tree) -> None:
    """Pages that the first checkpoint has are not stored again."""
    first, second = (
        crckpt.run("dump", str(family.pid), "job", "--json").document["result"]["checkpoint"]["statistics"]
        for _ in range(2)
    )
    assert second["stored_bytes"] < first["stored_bytes"] / 3


def test_rm_keeps_other_checkpoints_and_gc_frees_space(crckpt: Crckpt, family: Tree) -> None:
    """An older checkpoint can be removed although the newer one shares its pages."""
    for _ in range(2):
        crckpt.run("dump", str(family.pid), "job")
    crckpt.run("rm", "job~1")
    crckpt.run("gc")
    crckpt.run("verify", "--all")
    assert len(crckpt.run("list", "--json").document["result"]["checkpoints"]) == 1
    before, facts = family.counters(), family.facts()
    crckpt.run("dump", str(family.pid), "job", "--stop")
    family.wait_gone()
    crckpt.run("rm", "job~1")
    crckpt.run("gc")
    crckpt.run("restore", "job", "--detach")
    family.wait_growth(before)
    assert family.facts() == facts


def test_dry_run_of_a_dump_creates_no_store_and_does_not_stop_the_tree(crckpt: Crckpt, family: Tree) -> None:
    """No store is created, and the tree is not stopped."""
    output = crckpt.run("dump", str(family.pid), "job", "--dry-run").out
    assert "--leave-running" in output
    assert not crckpt.store.exists()


def test_flipped_bit_in_a_store_is_found_by_verify_and_restore(crckpt: Crckpt, family: Tree) -> None:
    """`verify` exits with 13 and names the checkpoint, and `restore` refuses it."""
    crckpt.run("dump", str(family.pid), "job")
    pack = next((crckpt.store / "packs").glob("*/*.pack"))
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.write_bytes(content)
    identity = crckpt.run("list", "--json").document["result"]["checkpoints"][0]["id"]
    result = crckpt.run("verify", "--json", status=13).document["result"]
    assert [damage["checkpoints"] for damage in result["damages"]] == [[identity]]
    assert pack.stem[:12] in crckpt.run("verify", status=13).out
    crckpt.run("restore", "job", "--new-pid-namespace", "--detach", "--no-preflight", status=13)


def test_exported_images_restore_without_crckpt(crckpt: Crckpt, family: Tree, tmp_path: Path) -> None:
    """Plain `criu restore -D` accepts the images."""
    before, facts = family.counters(), family.facts()
    crckpt.run("dump", str(family.pid), "job", "--stop")
    family.wait_gone()
    crckpt.run("export", "job", str(tmp_path / "images"))
    subprocess.run([CRIU, "restore", "-d", "-D", str(tmp_path / "images")], check=True, stdin=subprocess.DEVNULL)
    family.wait_growth(before)
    assert family.facts() == facts


def test_imported_images_restore_with_crckpt(crckpt: Crckpt, family: Tree, tmp_path: Path) -> None:
    """Images of a bare `criu dump` become a checkpoint like any other."""
    before = family.counters()
    images = tmp_path / "images"
    images.mkdir()
    subprocess.run([CRIU, "dump", "-t", str(family.pid), "-D", str(images)], check=True, stdin=subprocess.DEVNULL)
    family.wait_gone()
    crckpt.run("import", str(images), "job")
    crckpt.run("restore", "job", "--detach")
    family.wait_growth(before)


def test_tags_can_be_moved_and_removed(crckpt: Crckpt, family: Tree) -> None:
    """JOB:TAG means the checkpoint that got the tag last."""
    ids = [
        crckpt.run("dump", str(family.pid), "job", "--tag", "here", "--json").document["result"]["checkpoint"]["id"]
        for _ in range(2)
    ]
    assert crckpt.run("show", "job:here", "--json").document["result"]["id"] == ids[1]
    crckpt.run("tag", "job~1", "here")
    assert crckpt.run("show", "job:here", "--json").document["result"]["id"] == ids[0]
    crckpt.run("tag", "job", "here", "--remove")
    assert "job 'job' has no tag 'here'" in crckpt.run("show", "job:here", status=12).err


def test_store_cannot_be_read_by_other_users_whatever_the_umask(crckpt: Crckpt, family: Tree) -> None:
    """A checkpoint contains the memory of a process: no other user may read it, whatever the umask."""
    before = os.umask(0)
    try:
        crckpt.run("dump", str(family.pid), "job", "--tag", "here")
    finally:
        os.umask(before)
    for path in (crckpt.store, *crckpt.store.rglob("*")):
        assert path.stat().st_mode & 0o7777 == (0o700 if path.is_dir() else 0o600), path


def test_manifest_does_not_contain_command_lines(crckpt: Crckpt, tmp_path: Path) -> None:
    """Command lines may contain secrets. They are in the pack, compressed, with the store's mode."""
    target = subprocess.Popen(
        ["/usr/bin/sleep", "1000.00000042"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: Path(f"/proc/{target.pid}/comm").read_text() == "sleep\n", 60, "sleep to start")
        crckpt.run("dump", str(target.pid))
        manifest = next((crckpt.store / "checkpoints").glob("*/manifest.json")).read_text()
        assert json.loads(manifest)["job"] == "sleep"
        assert "00000042" not in manifest
        assert "1000.00000042" in crckpt.run("show", "sleep").out
    finally:
        target.kill()
        target.wait()


def test_command_version_prints_the_versions_of_crckpt_and_criu(crckpt: Crckpt) -> None:
    """The output has the version of crckpt and that of CRIU."""
    lines = crckpt.run("--version").out.splitlines()
    assert lines[0].startswith("crckpt ")
    assert lines[1].startswith("CRIU 4.")


def test_every_command_has_help(crckpt: Crckpt) -> None:
    """`--help` ends with 0 and names the command."""
    for name in (*KEYS, "list"):
        assert name in crckpt.run(name, "--help").out
