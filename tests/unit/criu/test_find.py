"""Which CRIU is taken, why others are passed over, and what is remembered."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from own_process import children, descriptors

from crckpt.criu import cache as criu_cache
from crckpt.criu import find
from crckpt.criu.cache import Candidate, CriuFacts, candidates, recall
from crckpt.criu.trial import trial
from crckpt.errors import HostCannot
from crckpt.host.versions import read_criu_version

VERSION = '[ "$1" = --version ] && { echo "Version: 9.9"; exit 0; }\n'


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o700)
    return path


@pytest.fixture(autouse=True)
def nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CRIU is named by the surroundings, lies on PATH or was installed by us."""
    # What is installed here stays: other tests, and other programs, use it.
    monkeypatch.setattr(criu_cache, "PREFIX", tmp_path / "prefix")
    monkeypatch.delenv("CRCKPT_CRIU", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """A memory of our own."""
    return tmp_path / "cache/criu.json"


def why_not(path: Path, memory: Path) -> str:
    """Why the CRIU at `path` is passed over."""
    found = find.search(path, None, memory)
    candidate, why = found.rejected[0]
    assert candidate == Candidate(path, "--criu")
    return why


def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = script(tmp_path / "criu", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CRCKPT_CRIU", "/from/environment")
    monkeypatch.chdir(tmp_path)
    named = list(candidates(Path("relative/criu"), Path("/configured")))
    assert named[:5] == [
        Candidate(tmp_path / "relative/criu", "--criu"),
        Candidate(Path("/from/environment"), "CRCKPT_CRIU"),
        Candidate(Path("/configured"), "configuration"),
        Candidate(on_path, "PATH"),
        Candidate(tmp_path / "prefix/criu", "private prefix"),
    ]


def test_where_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCKPT_CRIU", "")
    assert {candidate.origin for candidate in candidates(None, None)} == {"private prefix"}


def test_not_there(tmp_path: Path, memory: Path) -> None:
    assert why_not(tmp_path / "none", memory) == "not there"
    assert why_not(script(tmp_path / "file", "") / "criu", memory) == "not there"


def test_not_executable(tmp_path: Path, memory: Path) -> None:
    (tmp_path / "criu").touch()
    assert why_not(tmp_path / "criu", memory) == "not executable"
    assert "Permission denied" in why_not(tmp_path, memory)


def test_garbage(tmp_path: Path, memory: Path) -> None:
    assert "is not CRIU: last words" in why_not(script(tmp_path / "criu", "printf 'x\\377\\nlast words'"), memory)
    assert "does not start: status 3" in why_not(script(tmp_path / "criu", "exit 3"), memory)
    (tmp_path / "criu").write_bytes(b"\x7fELF\x02\x01 for some other machine")
    assert "Exec format error" in why_not(tmp_path / "criu", memory)


def test_a_check_that_fails(tmp_path: Path, memory: Path) -> None:
    broken = script(
        tmp_path / "criu", f"{VERSION}echo 'Error (criu/vdso.c:1): vdso: Unexpected rt vDSO area bounds'; exit 1"
    )
    assert why_not(broken, memory) == "criu check fails: this CRIU is too old for the running kernel"
    silent = script(tmp_path / "criu", f"{VERSION}exit 1")
    assert why_not(silent, memory) == "criu check fails"
    other = script(tmp_path / "criu", f"{VERSION}echo Looks bad. >&2; exit 1")
    assert why_not(other, memory) == "criu check fails: Looks bad."


def test_a_trial_dump_that_fails(tmp_path: Path, memory: Path) -> None:
    before = children(), descriptors()
    failing = script(
        tmp_path / "criu",
        f'{VERSION}[ "$1" = check ] && exit 0\n'
        'echo "Error (criu/sk-inet.c:137): inet: Unsupported proto 6 for socket 1"; exit 1',
    )
    assert why_not(failing, memory).startswith("the trial dump fails: a socket speaks IP protocol 6")
    assert (children(), descriptors()) == before


def test_a_trial_dump_that_ends_the_program_and_a_restore_that_fails(tmp_path: Path, memory: Path) -> None:
    before = children(), descriptors()
    ending = script(tmp_path / "criu", f'{VERSION}case "$1" in dump) kill -9 "$3";; restore) exit 1;; esac')
    assert why_not(ending, memory) == "the trial restore fails"
    lying = script(tmp_path / "criu", f'{VERSION}case "$1" in dump) kill -9 "$3";; esac')
    assert why_not(lying, memory) == "the trial restore fails"
    assert (children(), descriptors()) == before


def test_a_trial_program_that_does_not_start(tmp_path: Path) -> None:
    python = str(script(tmp_path / "python", "echo no such module; exit 1"))
    assert trial(script(tmp_path / "criu", "exit 0"), python) == "the trial's program does not start: no such module"


def test_none_that_works_is_told_with_all_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCKPT_CRIU", "/nowhere/criu")
    with pytest.raises(HostCannot, match="no CRIU works") as caught:
        find.find(tmp_path / "none", None)
    assert caught.value.causes[:2] == (
        f"{tmp_path}/none (--criu): not there",
        "/nowhere/criu (CRCKPT_CRIU): not there",
    )
    assert caught.value.hint


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CRIU that works here, from wherever it would be taken."""
    monkeypatch.undo()
    known = find.search(None, None, tmp_path_factory.getbasetemp() / "criu.json")
    if known.criu is None:
        pytest.skip("no CRIU works on this host: " + "; ".join(why for _, why in known.rejected))
    return known.criu.path


def test_one_that_works_is_found_and_remembered(working: Path, memory: Path, tmp_path: Path) -> None:
    link = tmp_path / "criu"
    link.symlink_to(working)
    before = children(), descriptors()
    found = find.search(link, None, memory).criu
    assert found is not None
    assert (found.path, found.origin) == (link, "--criu")
    assert (children(), descriptors()) == before
    assert recall(link, memory) == CriuFacts(found.version, found.digest, found.locks_by_nftables)
    assert read_criu_version(link) == found.version
    link.unlink()
    shutil.copy(working, link)
    os.utime(link, (1, 1))
    assert recall(link, memory) is None, "another file is another CRIU"


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "5", '{"PATH": 5}', '{"PATH": []}', '{"PATH": "x"}', '{"PATH": {}}']
)
def test_a_memory_of_nonsense_is_no_memory(tmp_path: Path, memory: Path, content: str) -> None:
    path = script(tmp_path / "criu", "")
    memory.parent.mkdir()
    memory.write_text(content.replace("PATH", str(path)))
    assert recall(path, memory) is None


def test_what_is_remembered_of_others_stays_as_long_as_they_are_there(working: Path, memory: Path) -> None:
    memory.parent.mkdir()
    other = str(memory.parent)
    memory.write_text(json.dumps({other: {"version": "1"}, f"{other}/gone": {"version": "1"}}))
    found = find.search(working, None, memory).criu
    assert found is not None
    assert json.loads(memory.read_text()).keys() == {other, str(working)}


def test_a_memory_that_cannot_be_written_is_none(working: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert find.search(working, None, tmp_path / "file/criu.json").criu is not None
