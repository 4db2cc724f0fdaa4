"""Rights that CRIU has without root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from crckpt.host.probes import setup
from crckpt.host.process import run

IS_ROOT = os.geteuid() == 0
AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="needs root")


@AS_ROOT
def test_missing_capabilities_of_criu_have_a_fix(tmp_path: Path) -> None:
    program = Path(shutil.copy("/bin/true", tmp_path / "criu"))
    if shutil.which("setcap") is None:
        pytest.skip("there is no setcap")
    bare = setup.rootless(program)
    assert (bare.state, bare.fix) == ("limited", f"sudo setcap cap_checkpoint_restore,cap_setpcap+eip {program}")
    run.run(["setcap", "cap_setpcap+eip", program])
    assert setup.rootless(program).found == f"{program} lacks cap_checkpoint_restore"
    given = run.run(bare.fix.split()[1:])
    assert given.ok, given.output
    assert setup.rootless(program).state == "ok"
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert "is a script" in setup.rootless(script).found
    assert setup.rootless(None).fix == "crckpt install-criu"
