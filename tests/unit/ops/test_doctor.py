"""What doctor says of this installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.criu.find import Criu, Search
from crckpt.host.probes.outcome import Outcome
from crckpt.ops import doctor


@pytest.mark.parametrize(("method", "state"), [("soft-dirty", "limited"), ("", "missing")])
def test_an_installation_without_libraries_is_named_with_its_remedy(
    method: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LIBRARY", tmp_path / "libpreload.so")
    monkeypatch.setattr(doctor, "find_method", lambda _: (method, "because"))
    criu = Criu(tmp_path / "criu", "PATH", "4.2", "", locks_by_nftables=True)
    found = doctor._tracker(Outcome("ok", "works"), Search(criu, ()), "")  # noqa: SLF001
    assert (found.state, found.found) == (state, "crckpt was installed without a C compiler")
    assert found.fix == "apt-get install gcc libc6-dev; then install crckpt again"
    assert not found.safe
