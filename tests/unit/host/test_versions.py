"""The version of a CRIU, or why it has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from criu_scripts import script

from crckpt.errors import HostCannot
from crckpt.host.machine import read_criu_version


@pytest.mark.parametrize("text", ["Version: 4.2", "Warn: old\nVersion: 4.2 (gitid v4.2)\nGitID: x"])
def test_version_of_criu_is_read_from_its_output(tmp_path: Path, text: str) -> None:
    assert read_criu_version(script(tmp_path / "criu", f"echo '{text}'")) == "4.2"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo first; echo last", "^it is not CRIU: its --version says 'first'$"),
        (
            "echo 'false (GNU coreutils) 9.1'; exit 1",
            r"^it is not CRIU: its --version says 'false \(GNU coreutils\) 9.1'$",
        ),
        ("exit 0", "^it is not CRIU: its --version says nothing$"),
        ("exit 3", "^it does not start: status 3$"),
        ("echo no library >&2; exit 127", "^it does not start: no library$"),
        ('echo "$0: version GLIBC_9 not found" >&2; exit 1', "^it does not start: .*GLIBC_9 not found$"),
        ("echo begun; kill -ABRT $$", "^it does not start: begun$"),
    ],
)
def test_program_that_is_not_criu_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(HostCannot, match=why):
        read_criu_version(script(tmp_path / "criu", text))
