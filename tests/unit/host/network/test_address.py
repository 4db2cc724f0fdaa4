"""ADDR/LEN@DEV, as users type it."""

from __future__ import annotations

import pytest

from crckpt.errors import UsageError
from crckpt.host.network.address import HostAddress, parse_address


@pytest.mark.parametrize(
    ("text", "ip", "length", "device", "prefix"),
    [
        ("10.0.0.5/24@eth0", "10.0.0.5", 24, "eth0", "10.0.0.0/24"),
        ("10.0.0.5/32@lo", "10.0.0.5", 32, "lo", "10.0.0.5/32"),
        ("2001:DB8::0:5/64@enp3s0.100", "2001:db8::5", 64, "enp3s0.100", "2001:db8::/64"),
        ("2001:db8::5/128@abcdefghijklmno", "2001:db8::5", 128, "abcdefghijklmno", "2001:db8::5/128"),
    ],
)
def test_host_address_with_prefix_and_device_is_parsed(
    text: str, ip: str, length: int, device: str, prefix: str
) -> None:
    address = parse_address(text)
    assert address == HostAddress(ip, length, device)
    assert (address.prefix, address.family) == (prefix, 6 if ":" in ip else 4)
    assert address.is_single == (length in (32, 128))
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not ADDR/LEN@DEV"),
        ("10.0.0.5@eth0", "is not ADDR/LEN@DEV"),
        ("10.0.0.5/24", "is not ADDR/LEN@DEV"),
        ("10.0.0.5/24@", "has 1 to 15 bytes"),
        ("10.0.0.5/24@abcdefghijklmnop", "has 1 to 15 bytes"),
        ("10.0.0.5/24@äöüäöüäö", "has 1 to 15 bytes"),
        ("10.0.0.5/24@-eth0", "cannot be a network device"),
        ("10.0.0.5/24@eth0@if3", "cannot be a network device"),
        ("10.0.0.5/24@eth0:1", "cannot be a network device"),
        ("10.0.0.5/24@a/b", "cannot be a network device"),
        ("10.0.0.5/24@..", "cannot be a network device"),
        ("10.0.0.5/24@eth 0", "cannot be a network device"),
        ("10.0.0.5/24@eth\x1b0", "cannot be a network device"),
        ("10.0.0.5/@eth0", "is not the length of a prefix"),
        ("10.0.0.5/+24@eth0", "is not the length of a prefix"),
        ("10.0.0.5/255.255.255.0@eth0", "is not the length of a prefix"),
        ("10.0.0.5/33@eth0", "is not an address"),
        ("10.0.0/24@eth0", "is not an address"),
        ("010.0.0.5/24@eth0", "is not an address"),
        ("host.example/24@eth0", "is not an address"),
        ("2001:db8::5/129@eth0", "is not an address"),
        ("fe80::1/64@eth0", "valid on one link only"),
        ("169.254.1.1/16@eth0", "valid on one link only"),
        ("2001:db8::5%eth0/64@eth0", "valid on one link only"),
        ("0.0.0.0/0@eth0", "unspecified"),
        ("::/0@eth0", "unspecified"),
        ("127.0.0.1/8@lo", "loopback"),
        ("::1/128@lo", "loopback"),
        ("224.0.0.1/4@eth0", "multicast"),
        ("ff02::1/128@eth0", "multicast"),
        ("255.255.255.255/32@eth0", "broadcast"),
        ("::ffff:10.0.0.5/96@eth0", "mapped IPv4"),
    ],
)
def test_invalid_host_address_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_address(text)
    assert caught.value.hint
