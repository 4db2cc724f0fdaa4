"""A pytest plugin: with -n, each worker has namespaces of its own, as `scripts/isolated` makes them."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from checkout import PROJECT
from leftovers import INIT, ON_HOST
from selection import LIST_NEEDS


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Isolate the workers that pytest-xdist will start; it has counted them by now."""
    if config.getoption(LIST_NEEDS):  # the output of workers is not shown
        config.option.dist, config.option.tx = "no", []
    elif os.geteuid() == 0 and shutil.which(INIT) and ON_HOST not in os.environ:
        isolated = f"popen//python={PROJECT / 'scripts/isolated'} {sys.executable}"
        config.option.tx = [isolated if worker == "popen" else worker for worker in config.getoption("tx", ())]
