"""Run WORKDIR/N.py, N counted from 0, and write the value of `answer` to WORKDIR/N.txt.

So a test can direct it without a descriptor of ours.
"""

import itertools
import sys
import time
import traceback
from pathlib import Path


def main() -> None:
    """Run for ever."""
    workdir = Path(sys.argv[1])
    names: dict[str, object] = {"workdir": workdir}
    for number in itertools.count():
        order = workdir / f"{number}.py"
        while not order.exists():
            time.sleep(0.01)
        names["answer"] = None
        try:
            exec(order.read_text(), names)  # noqa: S102
            answer = repr(names["answer"])
        except BaseException:
            answer = traceback.format_exc()
        (workdir / "new").write_text(answer)
        (workdir / "new").rename(workdir / f"{number}.txt")


if __name__ == "__main__":
    main()
