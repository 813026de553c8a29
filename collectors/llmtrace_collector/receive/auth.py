"""Authenticate senders."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from llmtrace_collector.receive.rejections import RejectedError

# A token, a function that returns the one in effect, or `None`: none is needed.
Secret = str | None | Callable[[], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """Who may send.

    Attributes:
        token: that a sender of spans shows as `Authorization: Bearer …`; `None` = none is needed.
            Web pages cannot keep a secret, so beacons need none.
        origins: of web pages that may send, such as `https://shop.example`; `"*"` for any. Pages
            of this collector's own origin always may.
    """

    token: Secret = field(default=None, repr=False)
    origins: frozenset[str] = frozenset()

    def allowed(self, origin: str | None, host: str | None) -> str | None:
        """Return the allowed origin for the response; `None` = no web page, or not allowed."""
        if origin is None:
            return None
        if "*" in self.origins:
            return "*"
        # Behind a proxy that ends TLS the scheme is not known here: only the host counts.
        if origin in self.origins or (host and origin.partition("://")[2] == host):
            return origin
        return None


def check_token(given: str | None, wanted: Secret) -> None:
    """Compare an Authorization header with the token, if one is needed.

    Raises:
        RejectedError: `unauthenticated`: the header does not hold the token.
    """
    token = wanted() if callable(wanted) else wanted
    if token is None:
        return
    scheme, _, shown = (given or "").partition(" ")
    # As bytes: a header need not be ASCII.
    if scheme.lower() != "bearer" or not hmac.compare_digest(
        shown.strip().encode("utf-8", "replace"), token.encode()
    ):
        raise RejectedError("unauthenticated", "a token is needed: Authorization: Bearer ...")
