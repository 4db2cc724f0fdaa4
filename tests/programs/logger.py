"""Append numbered lines to a file, one each millisecond: `logger.py FILE`."""

from __future__ import annotations

import itertools
import os
import sys
import time

log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
for number in itertools.count():
    os.write(log, f"{number}\n".encode())
    time.sleep(0.001)
