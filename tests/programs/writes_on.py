"""Count into a file, as fast as the disk takes it; each line has the host."""

import os
import sys
import time
from pathlib import Path

number = 0
with Path(sys.argv[1]).open(sys.argv[2], encoding="ascii") as file:
    while True:
        number += 1
        print(number, os.uname().nodename, file=file, flush=True)
        time.sleep(0.001)
