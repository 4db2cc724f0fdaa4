"""Programs and plugins of CRIU that are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.host.probes import network, setup
from crckpt.host.probes.trial import ok


def test_tools_are_searched_on_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.util_linux().state == "ok"
    request.getfixturevalue("commands")
    assert setup.util_linux().fix == "apt-get install util-linux"
    assert setup.ssh().fix == "apt-get install openssh-client"
    assert network.lock_by_iptables().fix == "apt-get install iptables"


def test_plugins_are_searched_where_criu_does(tmp_path: Path) -> None:
    criu = tmp_path / "criu"
    criu.write_text(f"#!/bin/sh\necho '  -L|--libdir           path to a plugin directory (by default {tmp_path}/)'\n")
    criu.chmod(0o755)
    assert setup.criu_plugins(criu).state == "missing"
    (tmp_path / "cuda_plugin.so").touch()
    assert setup.criu_plugins(criu) == ok(f"cuda_plugin.so in {tmp_path}")
    assert setup.criu_plugins(None).fix == "crckpt install-criu"
