"""Words that completion offers. It must never fail, wait or be slow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from image_sets import ImageSet, area, described, store
from msgspec.structs import replace

from crckpt.cli.app import COMMANDS
from crckpt.cli.completion import complete
from crckpt.cli.completion.complete import CommandLine
from crckpt.cli.help import UNLISTED
from crckpt.model import Task
from crckpt.store import Repository

SLOW = ("cryptography", "numpy", "ptrace", "rich", "zstandard")
IMAGES = ImageSet({"pagemap-100.img": [area(10, 1)]}, {"core-100.img": b"registers"})


def words(*typed: str) -> list[str]:
    kind, *lines = complete.complete(typed)
    assert kind == "words"
    return [line.partition("\t")[0] for line in lines]


def run(*typed: str, before: tuple[str, ...] = (), **environment: str) -> str:
    """Run the command as a shell does; check that it succeeds without a message."""
    result = subprocess.run(
        [*before, sys.executable, "-m", "crckpt", *typed],
        env=os.environ | {"_CRCKPT_COMPLETE": "bash_complete"} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stderr == ""
    return result.stdout


def test_completion_offers_commands_and_options() -> None:
    listed = [name for name in COMMANDS if name not in UNLISTED]
    assert words("") == listed
    assert words("re") == [name for name in listed if name.startswith("re")]
    assert words("--") == ["--help", "--version"]
    assert "--store" in words("list", "--")
    assert words("dump", "1", "--tcp", "") == ["keep", "close"]
    assert words("dump", "1", "--tcp=k") == ["--tcp=keep"]
    assert words("help", "du") == ["dump"]
    assert words("nonsense") == []


def test_completion_offers_no_pid_of_crckpt_and_its_shell(repository: Repository, tmp_path: Path) -> None:
    store(repository, tmp_path, IMAGES, described("trainer"))
    offered = words("dump", "--store", str(repository.root), "")
    assert {str(os.getpid()), str(os.getppid())}.isdisjoint(offered)
    assert "trainer" in offered


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_of_the_commands_is_a_path_or_has_a_completion(command: str) -> None:
    for parameter in CommandLine(command, [""]).parameters:
        if parameter.param_type_name == "argument":
            assert parameter.type.name == "path" or parameter.name in complete._FINDERS  # noqa: SLF001


@pytest.mark.parametrize("command", COMMANDS)
def test_completion_loads_no_slow_module(command: str) -> None:
    code = f"""
import sys
from crckpt.cli.completion.complete import complete
for typed in (["-"], [""], ["a", ""]):
    list(complete([{command!r}, *typed]))
print(*({set(SLOW)!r} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "\n"


def test_completion_offers_stored_jobs_checkpoints_and_tags(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CRCKPT_STORE", raising=False)
    checkpoint = store(repository, tmp_path, IMAGES)
    repository.tag(checkpoint.id, "good")
    place = ("--store", str(repository.root))
    assert words("show", *place, "") == [checkpoint.job, f"{checkpoint.job}:good"]
    assert words("show", *place, checkpoint.id[:5]) == [checkpoint.id[:12]]
    assert words("tag", *place, checkpoint.job, "") == ["good"]
    assert words("core", *place, checkpoint.job, "") == [str(task.pid) for task in checkpoint.tree]
    monkeypatch.setenv("CRCKPT_STORE", str(repository.root))
    assert words("rm", "another", "") == [checkpoint.job, f"{checkpoint.job}:good"]


def test_program_names_in_completions_cannot_control_the_terminal(repository: Repository, tmp_path: Path) -> None:
    """A program chooses its name, and zsh prints descriptions as they are."""
    tree = (Task(100, 1, "\x1b]0;x\a\u202e\u3164", (100,)),)
    checkpoint = store(repository, tmp_path, IMAGES, replace(described(), tree=tree))
    lines = list(complete.complete(("core", "--store", str(repository.root), checkpoint.job, "")))
    assert lines == ["words", "100\t\N{REPLACEMENT CHARACTER}]0;x\N{REPLACEMENT CHARACTER}\\u202e\\u3164"]


def test_completion_offers_each_word_once(repository: Repository, tmp_path: Path) -> None:
    """If a word were offered twice with its description, bash would insert the description, too."""
    checkpoint = store(repository, tmp_path, IMAGES)
    store(repository, tmp_path, IMAGES, described(checkpoint.id[:12]))
    found = words("show", "--store", str(repository.root), checkpoint.id[:5])
    assert found.count(checkpoint.id[:12]) == 1


@pytest.mark.parametrize("typed", [r"a\ \$b", "'a $b'", "a' 'b", "'open", "\\"])
def test_completion_understands_bash_quoting(tmp_path: Path, typed: str) -> None:
    for name in ("a $b", "a b"):
        (tmp_path / name).touch()
    answered = run("dump", f"pidfile:{tmp_path}/{typed}").splitlines()
    found = {r"a\ \$b": "a $b", "'a $b'": "a $b", "a' 'b": "a b"}.get(typed)
    assert answered == (["words", f"pidfile:{tmp_path}/{found}\t"] if found else ["words"])


def test_locked_store_does_not_block_completion(repository: Repository, tmp_path: Path) -> None:
    checkpoint = store(repository, tmp_path, IMAGES)
    with repository.exclusive():
        assert checkpoint.job in run("show", "", CRCKPT_STORE=str(repository.root))


def test_completion_describes_pids_by_their_programs() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            lines = list(complete.complete(("dump", str(process.pid))))
        finally:
            process.kill()
    assert lines == ["words", f"{process.pid}\tsleep 60"]


def test_completion_offers_pidfiles(tmp_path: Path) -> None:
    (tmp_path / "a.pid").touch()
    (tmp_path / "folder").mkdir()
    assert words("dump", f"pidfile:{tmp_path}/") == [f"pidfile:{tmp_path}/a.pid", f"pidfile:{tmp_path}/folder/"]
    assert words("dump", f"cgroup:{tmp_path}/") == [f"cgroup:{tmp_path}/folder/"]


def test_completion_leaves_file_arguments_to_the_shell() -> None:
    assert list(complete.complete(("explain", ""))) == ["files"]
    assert list(complete.complete(("export", "job", ""))) == ["directories"]


def test_completion_is_silent_when_nothing_is_found(tmp_path: Path) -> None:
    nobody = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
    (tmp_path / "bad.yaml").write_text("store: [")
    for typed in (("show", ""), ("dump", ""), ("show", "--store", "/nonexistent", "")):
        run(*typed, before=nobody, HOME=str(tmp_path))
    run("show", "--config", str(tmp_path / "bad.yaml"), "")
    assert run("nonsense", "") == ""


def test_completion_scripts_of_shells_exist() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_CRCKPT_COMPLETE" in run(_CRCKPT_COMPLETE=f"{shell}_source")
