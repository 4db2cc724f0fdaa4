"""Load python-ptrace, which has no types: the modules that use it name what they use.

It takes 5 to 12 ms: `ptrace_binding` is imported only by processes that enter others, `call_names` loads it when a name
is asked for.
"""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _LoadedLibc(ModuleType):
    libc = ctypes.CDLL(None, use_errno=True)


def load(name: str) -> Any:
    """Import `ptrace.NAME`."""
    # It looks for the C library by running ldconfig, or gcc where there is none: 4 ms. It is loaded already.
    sys.modules.setdefault("ptrace.ctypes_libc", _LoadedLibc("ptrace.ctypes_libc"))
    return import_module(f"ptrace.{name}")
