"""The addresses of a NATS cluster, as the setting has them."""

from __future__ import annotations

from fleetbus.errors import BusError


def split_addresses(urls: str) -> list[str]:
    """Split addresses at commas; those without credentials get those of the first that has any.

    nats-py would log in to the others without any, and the first reconnect would be refused.

    Raises:
        BusError: one is empty; the message does not quote the others.
    """
    addresses = [address.strip() for address in urls.split(",")]
    if not all(addresses):
        raise BusError(
            f"NATS: address {addresses.index('') + 1} of {len(addresses)} is empty;"
            " several are separated by one comma each"
        )
    credentials = next((c for address in addresses if (c := _credentials(address))), "")
    return [_with_credentials(address, credentials) for address in addresses]


def _credentials(address: str) -> str:
    place = address.rpartition("://")[2]
    return place.rpartition("@")[0]


def _with_credentials(address: str, credentials: str) -> str:
    if not credentials or _credentials(address):
        return address
    scheme, separator, place = address.rpartition("://")
    return f"{scheme or 'nats'}{separator or '://'}{credentials}@{place}"
