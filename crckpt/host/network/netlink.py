"""Remove an address by a message to the kernel: to start ip(8) for it takes 10 ms. Source: rtnetlink(7), netlink(7)."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from crckpt.host.network.address import HostAddress

_DELETE: Final = 21  # RTM_DELADDR
_REQUEST_WITH_ANSWER: Final = 1 | 4
_HEADER: Final = struct.Struct("=IHHII")
# The family, the length of the prefix, flags, scope, the number of the device.
_ADDRESS: Final = struct.Struct("=BBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ATTRIBUTES: Final = (1, 2)  # IFA_ADDRESS, IFA_LOCAL
_ERROR: Final = struct.Struct("=i")
_FAMILIES: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_WITHIN_S: Final = 10.0
_LONGEST: Final = 1 << 16


def delete_address(address: HostAddress) -> None:
    """Remove an address. Raises OSError: EADDRNOTAVAIL if it is not there, ENODEV if its device is not."""
    device = socket.if_nametoindex(address.device)
    body = _ADDRESS.pack(_FAMILIES[address.family], address.length, 0, 0, device)
    for kind in _ATTRIBUTES:
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), kind) + address.packed
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_WITHIN_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _DELETE, _REQUEST_WITH_ANSWER, 1, 0) + body)
        (code,) = _ERROR.unpack_from(kernel.recv(_LONGEST), _HEADER.size)
    if code:
        raise OSError(-code, os.strerror(-code))
