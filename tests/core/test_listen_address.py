"""Is an address that cannot be listened on named, and what chooses another?"""

from __future__ import annotations

import re

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace.core.listen_address import listen


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_an_address_in_use_is_named(host, shown):
    """With its port, the reason in words, and the setting."""
    with listen(host, 0, "--listen HOST:PORT") as first:
        port = first.getsockname()[1]
        words = f"cannot listen on {shown}:{port}: address already in use; choose another address"

        with pytest.raises(ConfigError, match=f"^{re.escape(words)} by --listen HOST:PORT"):
            listen(host, port, "--listen HOST:PORT")


def test_an_address_of_another_machine_is_named():
    """Of a network that is for documentation alone."""
    with pytest.raises(ConfigError, match=r"^cannot listen on 192\.0\.2\.1:0: cannot assign"):
        listen("192.0.2.1", 0, "--listen HOST:PORT")
