"""Who can reach what a command of ours listens on: this machine alone, or others as well?"""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches a host to listen on.

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
