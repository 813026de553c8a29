"""TLS files of a connection to a target: the CA that is trusted, and the client's certificate.

A context is made once for the files as they are, so that connections are kept alive; a file that
was replaced, as renewed certificates are, makes a new one at the next reading.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from llmtrace.core.errors import ConfigError, explain_error

_MAX_CONTEXTS: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files of one target's connections, all PEM; `None` = what the system has, or nothing.

    Attributes:
        ca: authorities that sign the target's certificate, in place of the system's.
        cert: shown to the target (mTLS), with its `key`.
        key: of `cert`.
        server_name: the name that the certificate must have; "" = the host in the address.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""

    def settings(self) -> dict[str, str]:
        """Return what is set, by the names that settings have for it."""
        files = {"ca_file": self.ca, "cert_file": self.cert, "key_file": self.key}
        named = {"server_name": self.server_name} if self.server_name else {}
        return {name: str(one) for name, one in files.items() if one} | named

    def context(self) -> ssl.SSLContext:
        """Return a context of the files as they are now.

        Raises:
            ConfigError: one cannot be read, or holds no certificate or key.
        """
        try:
            stamps = tuple(
                None if one is None else (one.stat().st_mtime_ns, one.stat().st_ino)
                for one in (self.ca, self.cert, self.key)
            )
            return _context(self, stamps)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = ", ".join(str(one) for one in (self.ca, self.cert, self.key) if one)
            raise ConfigError(f"{files}: {explain_error(error)}") from error


@lru_cache(maxsize=_MAX_CONTEXTS)
def _context(files: TlsFiles, stamps: tuple[object, ...]) -> ssl.SSLContext:
    del stamps  # only part of the cache's key
    made = ssl.create_default_context(cafile=files.ca)
    if files.cert is not None:
        made.load_cert_chain(files.cert, files.key)
    return made
