"""The two ends of ADDR/LEN@DEV:THERE, as users type it."""

from __future__ import annotations

import pytest

from crckpt.errors import UsageError
from crckpt.migrate.addresses import list_destination_addresses, list_source_addresses


def test_source_and_destination_get_their_own_device_names() -> None:
    typed = ("10.0.0.5/24@eth0", "2001:db8::5/64@eth0:ens3.7")
    assert [str(address) for address in list_source_addresses(typed)] == ["10.0.0.5/24@eth0", "2001:db8::5/64@eth0"]
    assert [str(address) for address in list_destination_addresses(typed)] == [
        "10.0.0.5/24@eth0",
        "2001:db8::5/64@ens3.7",
    ]


@pytest.mark.parametrize(
    "typed", ["10.0.0.5/24@eth0:", "10.0.0.5/24@:ens3", "10.0.0.5/24@eth0:a:b", "10.0.0.5/24:eth0", "10.0.0.5/24@"]
)
def test_invalid_device_pairs_are_refused(typed: str) -> None:
    for find in (list_source_addresses, list_destination_addresses):
        with pytest.raises(UsageError):
            find([typed])


def test_too_many_addresses_are_refused_before_the_other_host_is_asked() -> None:
    typed = [f"10.0.0.{last}/24@eth0" for last in range(65)]
    assert len(list_source_addresses(typed[:64])) == 64
    with pytest.raises(UsageError, match="65 addresses are too many; at most 64"):
        list_source_addresses(typed)
