"""A thread keeps exactly the capabilities that it is given."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crckpt.host.proc import effective_capabilities

CODE = """
from crckpt.host.proc.status import read_status
from crckpt.host.syscalls.own_process import set_capabilities
set_capabilities(1 << 21 | 1 << 40)
status = read_status("self")
print(*(int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh")))
"""


def test_capabilities_above_and_below_32_are_set() -> None:
    if not {21, 40} <= effective_capabilities():
        pytest.skip("needs CAP_SYS_ADMIN and CAP_CHECKPOINT_RESTORE")
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    kept = 1 << 21 | 1 << 40
    assert result.stdout.split() == [str(kept), str(kept), "0"]
