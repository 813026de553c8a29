"""Listen on an address, and decide which machines can reach it."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Final

from llmtrace.core.errors import ConfigError, explain_error

# Without a token only these will do: a page in a user's browser could have its own name mean
# this machine.
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Return a socket that listens on an address of this machine; port 0 takes a free one.

    `setting`, which chooses another address, is for the error.

    Raises:
        ConfigError: the address is in use, or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio sends without delay only where it is.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        where = f"{bracketed(host)}:{port}"
        raise ConfigError(
            f"cannot listen on {where}: {explain_error(error)}; choose another address by "
            f"{setting} (port 0 takes a free one)"
        ) from error
    return listener


def bracketed(host: str) -> str:
    """Return a host as it is written before a port: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host


def with_port(host: str, port: int | None) -> str:
    """Return a host, and its port if one is given, as a URL has them.

    Example:
        >>> with_port("::1", 8000), with_port("engine", None)
        ('[::1]:8000', 'engine')
    """
    return f"{bracketed(host)}:{port}" if port else host


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
