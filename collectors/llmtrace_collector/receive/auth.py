"""Authenticate senders."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from llmtrace.core.errors import ConfigError
from llmtrace_collector.receive.beacons import SERVICE
from llmtrace_collector.receive.rejections import RejectedError

# A token, what returns the one in effect, or `None`: none is needed.
Secret = str | None | Callable[[], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """Who may send.

    Attributes:
        token: that a sender of spans shows as `Authorization: Bearer …`; `None` = none is needed.
            Pages cannot keep a secret, so beacons need none.
        origins: of pages that may send, as `https://shop.example`; `"*"` for any. Pages of this
            collector's own origin always may.
        beacon_service: the `service.name` of beacons' spans.
    """

    token: Secret = field(default=None, repr=False)
    origins: frozenset[str] = frozenset()
    beacon_service: str = SERVICE

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            ConfigError: the token is empty, or no header can hold it.
        """
        token = self.token() if callable(self.token) else self.token
        if token is not None and not (token and token.isascii() and token.isprintable()):
            raise ConfigError("receive.token: must be printable ASCII, and not empty")

    def welcome(self, origin: str | None, host: str | None) -> str | None:
        """Return what the answer says of a page's origin; `None` = no page, or not welcome."""
        if origin is None:
            return None
        if "*" in self.origins:
            return "*"
        # Behind a proxy that ends TLS the scheme is not known here: the host is what counts.
        if origin in self.origins or (host and origin.partition("://")[2] == host):
            return origin
        return None


def check_token(given: str | None, wanted: Secret) -> None:
    """Compare an Authorization header with the token that is needed, if one is.

    Raises:
        RejectedError: `unauthenticated`: it does not show it.
    """
    token = wanted() if callable(wanted) else wanted
    if token is None:
        return
    scheme, _, shown = (given or "").partition(" ")
    # As bytes: a header may hold what is not ASCII.
    if scheme.lower() != "bearer" or not hmac.compare_digest(
        shown.strip().encode("utf-8", "replace"), token.encode()
    ):
        raise RejectedError("unauthenticated", "a token is needed: Authorization: Bearer ...")
