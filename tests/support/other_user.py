"""Code that runs as another user."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Final

NOBODY: Final = 65534


def as_user(check: Callable[[], object], user: int = NOBODY) -> None:
    """Run `check` in a child with the rights of `user` alone. AssertionError, with its traceback, if it raises.

    Needs root.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            check()
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        output = pipe.read()
    os.waitpid(child, 0)
    assert not output, output
