"""python-ptrace is used without what surprises: programs that it runs, exceptions of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from crckpt.host.syscalls import ptrace_requests


def test_import_of_the_ptrace_binding_starts_no_program() -> None:
    program = (
        "import sys; started = []\n"
        "sys.addaudithook(lambda event, words: started.append(event) if event in "
        "('subprocess.Popen', 'os.system', 'os.posix_spawn', 'os.fork') else None)\n"
        "import crckpt.host.syscalls.registers; print(started)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("name", ["getregs", "detach", "cont"])
def test_untraced_process_raises_an_os_error(name: ptrace_requests.Request) -> None:
    with pytest.raises(ProcessLookupError):
        ptrace_requests.call(name, os.getppid())
