"""Find or download a CRIU that works on this kernel. Imports only what Python has: it also runs before an installation.

The candidates are tried in this order until one dumps and restores a small test process (a version or `criu check`
proves little: CRIU 4.1 passes the check on Linux 6.18 and cannot dump a TCP socket there):

    path     the criu on PATH
    prefix   the criu in the private prefix, from an earlier run
    sid      Debian's package with its libraries and loader, unpacked into the private prefix: nothing is installed,
    testing    nothing compiled. Newest first: a new CRIU works on old kernels, an old CRIU fails on kernels that are
    stable     newer than it
    build    sid's source, built with this machine's compiler and libraries (only on request)

The prefix also gets the suite's `nft`, with which crckpt removes network locks that CRIU leaves, and (not if built) its
`crit`, which shows what is in CRIU's images.
"""

from pathlib import Path
from typing import Final

PREFIX: Final = Path("/usr/local/lib/crckpt/criu")
"""Where root's CRIU is installed."""
