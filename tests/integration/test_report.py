"""`report` makes an archive for a bug report that contains no secrets."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import AS_NOBODY, PROGRAM, WITHOUT_CRIU, Crckpt
from trees import PROGRAMS, PYTHON, Case, started, wait_for

from crckpt.store.owner import write_owner

INTERRUPTED = 130
IN_ENVIRONMENT, IN_COMMAND_LINE, IN_NOTE, HOST = "swordfish-1", "swordfish-2", "swordfish-3", "swordfish-host"
IN_MEMORY = random.Random("").randbytes(64)
"""With what a test program's memory begins: see selfcheck.py."""
# Python leaves alone an option -X that it does not know.
PROGRAM_WITH_SECRETS = Case(
    "secretive",
    ("/usr/bin/env", f"KEY={IN_ENVIRONMENT}", PYTHON, "-X", IN_COMMAND_LINE, f"{PROGRAMS}/counter.py", "{workdir}"),
)
CAUSE = "(00.1) Error (criu/pstree.c:304): Found dangling tty with sid 7 pgid 7"
LOG = f"(00.000078) Running on {HOST} Linux 6.1 x86_64\n{CAUSE}\n"
FILES_OF_EVERY_REPORT = ["report.json", "versions.json", "host.json", "configuration.json", "doctor.json"]


@dataclass(frozen=True)
class CheckpointWithSecrets:
    """A checkpoint `job` of a tree that has secrets, and its working directory."""

    crckpt: Crckpt
    pid: int
    workdir: Path


@pytest.fixture(scope="module")
def checkpoint_with_secrets(tmp_path_factory: pytest.TempPathFactory) -> CheckpointWithSecrets:
    """A checkpoint of a program with secrets, made on a host with a known name."""
    crckpt = Crckpt(tmp_path_factory.mktemp("report") / "store")
    with started(PROGRAM_WITH_SECRETS) as tree:
        words = ("dump", str(tree.pid), "job", "--note", IN_NOTE)
        _on_host(crckpt, *words)
        made = CheckpointWithSecrets(crckpt, tree.pid, tree.workdir)
    images = tmp_path_factory.mktemp("images")
    crckpt.run("export", "job", str(images))
    everything = b"".join(path.read_bytes() for path in images.iterdir())
    assert all(secret in everything for secret in (IN_MEMORY, IN_ENVIRONMENT.encode(), IN_COMMAND_LINE.encode()))
    return made


@pytest.fixture(autouse=True)
def current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory in which the command writes its archives."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_report_contains_no_secrets(checkpoint_with_secrets: CheckpointWithSecrets) -> None:
    """Secrets of the process and of the host are missing.

    With --with-secrets they are there: the test can find them.
    """
    result = json.loads(_on_host(checkpoint_with_secrets.crckpt, "report", "job", "--json"))["result"]
    assert result.keys() == {"archive", "bytes", "with_secrets", "members", "failed"}
    assert (result["failed"], result["with_secrets"]) == ([], False)
    assert result["bytes"] == Path(result["archive"]).stat().st_size
    archive = Path(result["archive"])
    assert archive.parent == Path.cwd()
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    members = _members(archive)
    everything = b"".join((*members.values(), *(name.encode() for name in members)))
    for secret in (IN_ENVIRONMENT, IN_COMMAND_LINE, IN_NOTE, HOST):
        assert secret.encode() not in everything
    assert IN_MEMORY not in everything
    assert IN_MEMORY[:16] not in everything
    assert list(members) == [
        "report.json",
        *(f"checkpoint/{name}.json" for name in ("manifest", "processes", "files", "sockets")),
        *FILES_OF_EVERY_REPORT[1:],
        "store.json",
    ]


def test_report_contains_versions_checks_and_manifest(checkpoint_with_secrets: CheckpointWithSecrets) -> None:
    """Versions, facts, the store's sizes, the manifest, and the files of the tree."""
    checkpoint_with_secrets.crckpt.run("report", "job", "--output", "it.tar.gz")
    document = {name: json.loads(content) for name, content in _members(Path("it.tar.gz")).items()}
    assert document["versions.json"]["crckpt"] == checkpoint_with_secrets.crckpt.run("--version").out.splitlines()
    assert document["configuration.json"]["store"] == str(checkpoint_with_secrets.crckpt.store)
    host = document["host.json"]
    assert 0 < host["memory_available"] < host["memory_total"]
    assert [disk["directory"] for disk in host["disks"]] == [str(checkpoint_with_secrets.crckpt.store)]
    keys = [fact["key"] for fact in checkpoint_with_secrets.crckpt.run("doctor", "--json").document["result"]["facts"]]
    assert [fact["key"] for fact in document["doctor.json"]["facts"]] == keys
    (listed,) = checkpoint_with_secrets.crckpt.run("list", "--json").document["result"]["checkpoints"]
    store = document["store.json"]
    assert (store["checkpoints"], store["jobs"], store["damaged"], store["pending"]) == (1, 1, [], [])
    assert store["raw_bytes"] == listed["statistics"]["raw_bytes"]
    assert document["checkpoint/manifest.json"]["id"] == listed["id"]
    assert document["checkpoint/processes.json"][0]["pid"] == checkpoint_with_secrets.pid
    paths = [file["path"] for file in document["checkpoint/files.json"]]
    assert paths.count(str(checkpoint_with_secrets.workdir / "half-read.bin")) == 2
    assert document["report.json"] == {"with_secrets": False, "failed": []}


def test_report_with_secrets_contains_command_lines_notes_and_host_names(
    checkpoint_with_secrets: CheckpointWithSecrets,
) -> None:
    """Memory and environment are never in a report."""
    _on_host(checkpoint_with_secrets.crckpt, "report", "job", "--with-secrets", "--output", "it.tar.gz")
    members = _members(Path("it.tar.gz"))
    assert IN_COMMAND_LINE in json.loads(members["checkpoint/command-lines.json"])[str(checkpoint_with_secrets.pid)]
    manifest = json.loads(members["checkpoint/manifest.json"])
    assert (manifest["note"], manifest["host"]["hostname"]) == (IN_NOTE, HOST)
    everything = b"".join(members.values())
    assert IN_MEMORY[:16] not in everything
    assert IN_ENVIRONMENT.encode() not in everything


def test_last_line_of_the_report_command_lists_the_files_in_the_report(
    checkpoint_with_secrets: CheckpointWithSecrets,
) -> None:
    """The line lists all files and asks the user to check them."""
    last = checkpoint_with_secrets.crckpt.run("report", "job", "--output", "it.tar.gz").out.splitlines()[-1]
    assert all(name in last for name in _members(Path("it.tar.gz")))
    assert "paths" in last
    assert "Read it before you send it" in last


def test_report_command_does_not_overwrite_an_existing_file(crckpt: Crckpt) -> None:
    """The existing file stays as it is. A missing directory is named."""
    crckpt.run("report", "--output", "it.tar.gz")
    before = Path("it.tar.gz").read_bytes()
    assert "it.tar.gz exists already" in crckpt.run("report", "--output", "it.tar.gz", status=2).err
    assert Path("it.tar.gz").read_bytes() == before
    assert "--output" in crckpt.run("report", "--output", "nowhere/it.tar.gz", status=2).err


def test_report_on_a_log_contains_the_log_and_its_cause(crckpt: Crckpt) -> None:
    """A file and stdin give the same report: the log without the host's name, and its cause."""
    Path("some.log").write_text(LOG)
    crckpt.run("report", "some.log", "--output", "file.tar.gz")
    words = (str(PROGRAM), "report", "-", "--output", "stdin.tar.gz")
    subprocess.run(words, input=LOG.encode(), env=crckpt.environment, check=True, capture_output=True)
    for name in ("file.tar.gz", "stdin.tar.gz"):
        members = _members(Path(name))
        assert list(members) == ["report.json", "log/criu.log", "log/explained.json", *FILES_OF_EVERY_REPORT[1:]]
        assert members["log/criu.log"].decode() == LOG.replace(HOST, "(host name)")
        explained = json.loads(members["log/explained.json"])
        assert "session whose leader is outside" in explained["what"]
        assert explained["lines"] == [CAUSE]
    crckpt.run("report", "./some.log", "--with-secrets", "--output", "secrets.tar.gz")
    assert _members(Path("secrets.tar.gz"))["log/criu.log"].decode() == LOG


def test_report_without_a_store_says_that_the_store_was_skipped(crckpt: Crckpt) -> None:
    result = crckpt.run("report", "--output", "it.tar.gz", "--json").document["result"]
    members = _members(Path("it.tar.gz"))
    assert list(members) == FILES_OF_EVERY_REPORT
    assert [failed["part"] for failed in result["failed"]] == ["store"]
    assert json.loads(members["report.json"])["failed"] == result["failed"]
    assert "skipped: store: " in crckpt.run("report").out


def test_report_refuses_an_unknown_job_store_or_log(
    checkpoint_with_secrets: CheckpointWithSecrets, crckpt: Crckpt
) -> None:
    error = checkpoint_with_secrets.crckpt.run("report", "nojob", "--output", "it.tar.gz", status=12).err
    assert "there is no job 'nojob'" in error
    assert "did you mean job? (for a log: crckpt report ./nojob)" in error
    assert "does not exist: use --store DIR" in crckpt.run("report", "job", "--output", "it.tar.gz", status=12).err
    assert "no.log" in crckpt.run("report", "no.log", "--output", "it.tar.gz", status=2).err
    assert not Path("it.tar.gz").exists()


def test_report_on_a_damaged_checkpoint_names_what_is_missing(
    checkpoint_with_secrets: CheckpointWithSecrets, tmp_path: Path
) -> None:
    """Without its packs, a checkpoint still has a manifest. A damaged manifest is reported."""
    crckpt = Crckpt(tmp_path / "copy")
    shutil.copytree(checkpoint_with_secrets.crckpt.store, crckpt.store)
    for pack in crckpt.store.glob("packs/*/*.pack"):
        pack.unlink()
    members, failed = _reported(crckpt, "job", 1)
    assert "checkpoint/manifest.json" in members
    assert failed == ["contents"]
    (manifest,) = crckpt.store.glob("checkpoints/*/manifest.json")
    manifest.write_bytes(b"broken")
    members, failed = _reported(crckpt, manifest.parent.name, 2)
    (damaged,) = json.loads(members["store.json"])["damaged"]
    assert damaged["id"] == manifest.parent.name
    assert failed == ["manifest", "contents"]
    (crckpt.store / "store.json").write_text("broken")
    members, failed = _reported(crckpt, "job", 3)
    assert list(members) == FILES_OF_EVERY_REPORT
    assert failed == ["manifest", "contents", "store"]


def test_report_contains_logs_of_a_killed_crckpt(
    checkpoint_with_secrets: CheckpointWithSecrets, tmp_path: Path
) -> None:
    """The newest logs come first. Logs of running commands are not included."""
    crckpt = Crckpt(tmp_path / "copy")
    shutil.copytree(checkpoint_with_secrets.crckpt.store, crckpt.store)
    for number, name in enumerate(("dump.log", "restore.log")):
        left = crckpt.store / "tmp" / f"{number}-left"
        left.mkdir(mode=0o700)
        (left / name).write_text(LOG)
        os.utime(left / name, (number, number))
    living = crckpt.store / "tmp" / "living"
    living.mkdir(mode=0o700)
    write_owner(living / "owner.json", time.time(), "owner")
    (living / "dump.log").write_text(LOG)
    members, failed = _reported(crckpt, "job", 1)
    assert [name for name in members if name.startswith("logs/")] == ["logs/1-restore.log", "logs/2-dump.log"]
    assert HOST.encode() not in members["logs/2-dump.log"]
    assert failed == []


def test_report_is_made_without_root_or_without_criu(crckpt: Crckpt) -> None:
    """The report says what is missing."""
    words = (*AS_NOBODY, str(PROGRAM), "report", "--output", "it.tar.gz", "--store", str(crckpt.store))
    subprocess.run(words, env=crckpt.environment, check=True, capture_output=True)
    facts = json.loads(_members(Path("it.tar.gz"))["doctor.json"])["facts"]
    assert "that needs root" in next(fact for fact in facts if fact["key"] == "criu")["consequence"]
    hidden = (*WITHOUT_CRIU, str(PROGRAM), "report", "--criu", "/bin/false", "--output", "no-criu.tar.gz")
    subprocess.run(hidden, env=crckpt.environment, check=True, capture_output=True)
    assert json.loads(_members(Path("no-criu.tar.gz"))["doctor.json"])["able"] is False


def test_interrupted_report_leaves_nothing(crckpt: Crckpt) -> None:
    """The report is interrupted while it waits for its log."""
    words = (str(PROGRAM), "report", "-", "--output", "it.tar.gz")
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stderr=pipe, text=True, env=crckpt.environment) as running:
        wait_for(Path("it.tar.gz").exists, 60, "the archive to be begun")
        running.terminate()
        assert running.stderr is not None
        assert "SIGTERM" in running.stderr.read()
    assert running.returncode == INTERRUPTED
    assert not Path("it.tar.gz").exists()


def _reported(crckpt: Crckpt, ref: str, number: int) -> tuple[dict[str, bytes], list[str]]:
    archive = f"{number}.tar.gz"
    result = crckpt.run("report", ref, "--output", archive, "--json").document["result"]
    return _members(Path(archive)), [failed["part"] for failed in result["failed"]]


def _members(archive: Path) -> dict[str, bytes]:
    """The files of the archive's one directory by name, in their order."""
    with tarfile.open(archive) as opened:
        entries = opened.getmembers()
        assert all(entry.isfile() and entry.name.startswith("crckpt-report/") for entry in entries)
        assert not any(".." in entry.name or entry.uname or entry.uid for entry in entries)
        contents = {entry.name.removeprefix("crckpt-report/"): opened.extractfile(entry) for entry in entries}
        return {name: content.read() for name, content in contents.items() if content}


def _on_host(crckpt: Crckpt, *words: str) -> str:
    """What crckpt says on a host of the name HOST."""
    renamed = ("unshare", "--uts", "sh", "-c", f'hostname {HOST}; exec "$0" "$@"')
    result = subprocess.run((*renamed, str(PROGRAM), *words), env=crckpt.environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
