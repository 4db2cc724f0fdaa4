"""The choice of a CRIU, the reasons for rejecting others, and the cache."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from criu_scripts import script
from own_process import children, descriptors

from crckpt.criu import find
from crckpt.criu.candidates import Candidate, CriuFacts, recall
from crckpt.errors import HostCannot
from crckpt.host.machine import read_criu_version

pytestmark = pytest.mark.usefixtures("no_criu_on_this_host")

NOWHERE = Path("/nowhere")


def why_not(path: Path, cache_file: Path) -> str:
    """Why the CRIU at `path` is passed over."""
    found = find.search(path, None, cache_file, prefix=NOWHERE)
    candidate, why = found.rejected[0]
    assert candidate == Candidate(path, "--criu")
    return why


def test_criu_that_does_not_exist_is_rejected(tmp_path: Path, cache_file: Path) -> None:
    assert why_not(tmp_path / "none", cache_file) == "it does not exist"
    assert why_not(script(tmp_path / "file", "") / "criu", cache_file) == "it does not exist"


def test_non_executable_criu_is_rejected(tmp_path: Path, cache_file: Path) -> None:
    (tmp_path / "criu").touch()
    assert why_not(tmp_path / "criu", cache_file) == "it is not executable"
    assert "Permission denied" in why_not(tmp_path, cache_file)


def test_program_that_is_not_criu_is_rejected(tmp_path: Path, cache_file: Path) -> None:
    assert "it is not CRIU: its --version says 'x" in why_not(
        script(tmp_path / "criu", "printf 'x\\377\\nlast words'"), cache_file
    )
    assert "does not start: status 3" in why_not(script(tmp_path / "criu", "exit 3"), cache_file)
    (tmp_path / "criu").write_bytes(b"\x7fELF\x02\x01 for some other machine")
    assert "Exec format error" in why_not(tmp_path / "criu", cache_file)


def test_error_lists_why_each_candidate_was_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCKPT_CRIU", "/nowhere/criu")
    with pytest.raises(HostCannot, match="no CRIU works") as caught:
        find.find(tmp_path / "none", None, NOWHERE)
    assert caught.value.causes[:2] == (
        f"{tmp_path}/none (--criu): it does not exist",
        "/nowhere/criu (CRCKPT_CRIU): it does not exist",
    )
    assert caught.value.hint


@pytest.fixture
def working_criu(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CRIU that works here, from any place where crckpt looks."""
    monkeypatch.undo()
    known = find.search(None, None, tmp_path_factory.getbasetemp() / "criu.json")
    if known.criu is None:
        pytest.skip("no CRIU works on this host: " + "; ".join(why for _, why in known.rejected))
    return known.criu.path


def test_criu_that_works_is_found_and_cached(working_criu: Path, cache_file: Path, tmp_path: Path) -> None:
    """The search leaves no child process and no open descriptor; a replaced file is not taken from the cache."""
    link = tmp_path / "criu"
    link.symlink_to(working_criu)
    before = children(), descriptors()
    found = find.search(link, None, cache_file).criu
    assert found is not None
    assert (found.path, found.origin) == (link, "--criu")
    assert (children(), descriptors()) == before
    assert recall(link, cache_file) == CriuFacts(found.version, found.digest, found.locks_by_nftables)
    assert read_criu_version(link) == found.version
    link.unlink()
    shutil.copy(working_criu, link)
    os.utime(link, (1, 1))
    assert recall(link, cache_file) is None, "the file was replaced"


def test_cache_entries_of_existing_files_are_kept(working_criu: Path, cache_file: Path) -> None:
    cache_file.parent.mkdir()
    other = str(cache_file.parent)
    cache_file.write_text(json.dumps({other: {"version": "1"}, f"{other}/gone": {"version": "1"}}))
    found = find.search(working_criu, None, cache_file).criu
    assert found is not None
    assert json.loads(cache_file.read_text()).keys() == {other, str(working_criu)}


def test_cache_of_working_crius_that_cannot_be_written_is_ignored(working_criu: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert find.search(working_criu, None, tmp_path / "file/criu.json").criu is not None
