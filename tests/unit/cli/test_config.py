"""`crckpt config` shows what is in force and where it comes from, or every mistake in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from documents.json_documents import check

from crckpt.cli.app import run

USAGE = 2


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CRCKPT_STORE", "CRCKPT_CONFIG", "CRCKPT_CRIU"):
        monkeypatch.delenv(name, raising=False)


def settings(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[Any, str, str]]:
    """For each key: value, source, origin."""
    capsys.readouterr()
    assert run(["config", *words, "--json"]) == 0
    document = capsys.readouterr().out
    check(document)
    found = json.loads(document)["result"]["settings"]
    return {each["key"]: (each["value"], each["source"], each["origin"]) for each in found}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "crckpt.yaml"
    path.write_text("store: /srv/store\ncriu: /srv/criu\ncompress: 0\n")
    return path


def test_configuration_file_overrides_the_defaults(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert settings(capsys, "--config", str(file)) == {
        "store": ("/srv/store", "file", str(file)),
        "criu": ("/srv/criu", "file", str(file)),
        "staging": (None, "default", ""),
        "compress": (0, "file", str(file)),
    }


def test_environment_overrides_the_configuration_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CRCKPT_STORE", "/srv/variable")
    monkeypatch.setenv("CRCKPT_CRIU", "/srv/other-criu")
    monkeypatch.setenv("CRCKPT_CONFIG", str(file))
    found = settings(capsys)
    assert found["store"] == ("/srv/variable", "environment", "CRCKPT_STORE")
    assert found["criu"] == ("/srv/other-criu", "environment", "CRCKPT_CRIU")
    assert found["compress"] == (0, "file", str(file))


def test_options_override_environment_and_configuration_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CRCKPT_STORE", "/srv/variable")
    monkeypatch.setenv("CRCKPT_CRIU", "/srv/other-criu")
    monkeypatch.chdir(file.parent)
    words = ("--store", "here", "--criu", "/c", "--staging", "/s", "--compress", "-1", "--config", str(file))
    assert settings(capsys, *words) == {
        "store": (str(file.parent / "here"), "option", "--store"),
        "criu": ("/c", "option", "--criu"),
        "staging": ("/s", "option", "--staging"),
        "compress": (-1, "option", "--compress"),
    }


def test_config_command_lists_values_and_their_sources(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("store: /srv/store\n")
    assert run(["config", "--config", str(file), "--criu", "/c", "-q"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"configuration file: {file}",
        "key       value                             from",
        f"store     /srv/store                        {file}",
        "criu      /c                                --criu",
        "staging   (in the store)                    default",
        "compress  (-1 or 1, depending on the data)  default",
    ]


@pytest.mark.skipif(os.geteuid() != 0 or Path("/etc/crckpt.yaml").exists(), reason="needs root without configuration")
def test_defaults_apply_without_a_configuration_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert settings(capsys)["store"] == ("/var/lib/crckpt", "default", "")
    assert run(["config"]) == 0
    assert capsys.readouterr().out.startswith("configuration file: /etc/crckpt.yaml (there is none)\n")


def test_mistakes_in_the_configuration_are_reported_with_the_known_keys(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("sotre: /srv/store\ncompress: 99\n")
    assert run(["config", "--config", str(file)]) == USAGE
    assert capsys.readouterr().err.splitlines() == [
        f"crckpt: {file} has 2 mistakes",
        "  - line 1: unknown key 'sotre', did you mean store?",
        "  - line 2: compress must be a whole number from -7 to 19, not 99",
        f"  hint: correct it, then check it: crckpt config --config {file}; known keys: compress, criu, staging, store",
    ]
