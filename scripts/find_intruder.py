"""Say who, besides root and us, can change what the first of these paths that others can change leads to.

Prints nothing if nobody can. Of a path that does not exist, the nearest directory above it counts.
Usage: python3 -I scripts/find_intruder.py PATH...
"""

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # by a Python that others do not run
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from crckpt.host.disk.path_trust import find_intruder_above  # noqa: E402 - the checkout must be on the path

for path in sys.argv[1:]:
    if intruder := find_intruder_above(Path(path), frozenset({os.geteuid()})):
        sys.stdout.write(f"{intruder}\n")
        break
