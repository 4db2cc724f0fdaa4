"""The places of CRIU in order, and the cache of working ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from criu_scripts import script

from crckpt.criu.candidates import Candidate, CriuFacts, candidates, recall, remember

pytestmark = pytest.mark.usefixtures("no_criu_on_this_host")


def test_candidates_for_criu_are_in_order_of_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = script(tmp_path / "criu", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CRCKPT_CRIU", "/from/environment")
    monkeypatch.chdir(tmp_path)
    named = list(candidates(Path("relative/criu"), Path("/configured"), tmp_path / "prefix"))
    assert named[:5] == [
        Candidate(tmp_path / "relative/criu", "--criu"),
        Candidate(Path("/from/environment"), "CRCKPT_CRIU"),
        Candidate(Path("/configured"), "configuration"),
        Candidate(on_path, "PATH"),
        Candidate(tmp_path / "prefix/criu", "private prefix"),
    ]


def test_criu_is_searched_only_in_the_private_prefix_without_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCKPT_CRIU", "")
    assert {candidate.origin for candidate in candidates(None, None)} == {"private prefix"}


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "5", '{"PATH": 5}', '{"PATH": []}', '{"PATH": "x"}', '{"PATH": {}}']
)
def test_damaged_cache_of_working_crius_is_ignored(tmp_path: Path, cache_file: Path, content: str) -> None:
    path = script(tmp_path / "criu", "")
    cache_file.parent.mkdir()
    cache_file.write_text(content.replace("PATH", str(path)))
    assert recall(path, cache_file) is None


def test_cached_result_for_another_file_is_not_used(tmp_path: Path) -> None:
    cache_file, criu = tmp_path / "above" / "cache" / "criu.json", tmp_path / "criu"
    criu.write_bytes(b"")
    facts = CriuFacts("4.2", "0" * 64, locks_by_nftables=True)
    remember(criu, facts, cache_file)
    assert recall(criu, cache_file) == facts
    for path in (cache_file.parent, cache_file.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    cache_file.chmod(0o666)
    assert recall(criu, cache_file) is None
    # It is replaced, not taken over.
    cache_file.write_text(json.dumps({str(tmp_path): {"version": "evil"}}))
    remember(criu, facts, cache_file)
    assert recall(criu, cache_file) == facts
    assert "evil" not in cache_file.read_text()
    assert cache_file.stat().st_mode & 0o777 == 0o600
