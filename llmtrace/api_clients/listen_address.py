"""Decide which machines can reach an address that a command listens on."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

# Without a token only these will do: a page in a user's browser could have its own name mean
# this machine.
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host to listen on.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1")
        (True, True, True)
        >>> is_loopback("0.0.0.0"), is_loopback("127.example.org")
        (False, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name may mean any address
        return False


def host_of(header: str) -> str:
    """Return the name in a `Host` header, without its port.

    Example:
        >>> host_of("Localhost:4319"), host_of("[::1]:4319")
        ('localhost', '::1')
    """
    name = header.lower().strip()
    if name.startswith("["):
        return name.partition("]")[0].removeprefix("[")
    return name.rpartition(":")[0] if name.count(":") == 1 else name
