"""Credentials for a server: a token, or a user name and password, and TLS files.

The files are read each time, so that renewed credentials are used at once.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmtrace.api_clients.http_client import read_token
from llmtrace.core.errors import ConfigError
from llmtrace_collector.scrape.fetch import FetchError
from llmtrace_collector.scrape.target_tls import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials for one server; by default there are none.

    Attributes:
        token_file: holds the token sent as `Authorization: Bearer`.
        username: sent as `Authorization: Basic`, with the password in `password_file`.
        password_file: holds that user's password.
        tls: files of an `https://` connection; `None` = the system's authorities.
    """

    token_file: Path | None = None
    username: str = ""
    password_file: Path | None = None
    tls: TlsFiles | None = None

    def authorization(self, where: str) -> str | None:
        """Return the value of the Authorization header; `None` = none is needed.

        Raises:
            FetchError: a file cannot be read.
        """
        try:
            if self.token_file is not None:
                return f"Bearer {read_token(self.token_file, 'token_file')}"
            if self.password_file is not None:
                password = self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
                return f"Basic {b64encode(f'{self.username}:{password}'.encode()).decode()}"
        except (ConfigError, OSError, ValueError) as error:
            raise FetchError("token", f"{where}: {error}") from error
        return None

    def context(self, where: str) -> ssl.SSLContext | None:
        """Return the context of connections; `None` = the system's.

        Raises:
            FetchError: one of its files cannot be read.
        """
        try:
            return None if self.tls is None else self.tls.context()
        except ConfigError as error:
            raise FetchError("files", f"{where}: {error}") from error

    @property
    def server_name(self) -> str | None:
        """The name that the server's certificate must have; `None` = the host in its address."""
        return (self.tls.server_name or None) if self.tls else None

    def settings(self) -> dict[str, str]:
        """Return what is set, by the names that settings have for it."""
        files = {"token_file": self.token_file, "password_file": self.password_file}
        named = {"username": self.username} if self.username else {}
        named |= {name: str(path) for name, path in files.items() if path}
        return named | (self.tls.settings() if self.tls else {})


NONE_NEEDED: Final = Credentials()
