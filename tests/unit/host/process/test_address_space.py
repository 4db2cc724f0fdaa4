"""Too little address space is reported before numpy is loaded, and not confused with other failures."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from crckpt.host.process.own_limits import is_out_of_memory

IMPORTING_PROGRAM = """
import resource, sys
from pathlib import Path
from crckpt.host.process.own_limits import refuse_large_imports
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
if sys.argv[1] != "none":
    resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20), resource.RLIM_INFINITY))
refuse_large_imports()
import json, colorsys
try:
    import numpy
    print("imported")
except MemoryError:
    print("refused")
"""


@pytest.mark.parametrize(("mebibytes", "expected"), [("none", "imported"), ("40", "refused"), ("4000", "imported")])
def test_import_of_large_modules_is_refused_if_the_address_space_is_too_small(mebibytes: str, expected: str) -> None:
    argv = [sys.executable, "-c", IMPORTING_PROGRAM, mebibytes]
    environment = {"OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
    assert result.stdout == f"{expected}\n"


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "x"), True),
        (OSError(errno.ENOENT, "x"), False),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (ImportError("no module named x"), False),
        (ValueError("out of memory"), False),
        (_caused(ImportError("x"), OSError(errno.ENOMEM, "x")), True),
        (_caused(ImportError("x"), ValueError("x")), False),
    ],
    ids=repr,
)
def test_errors_caused_by_lack_of_memory_are_recognized(error: BaseException, is_so: bool) -> None:
    assert is_out_of_memory(error) == is_so
