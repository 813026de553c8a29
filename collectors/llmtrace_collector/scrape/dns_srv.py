"""Find targets by DNS SRV records, which hold the host and port of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from dns import asyncresolver
from dns.exception import DNSException
from dns.resolver import NXDOMAIN, LifetimeTimeout, NoAnswer

from llmtrace_collector.scrape.credentials import NONE_NEEDED, Credentials
from llmtrace_collector.scrape.fetch import FetchError
from llmtrace_collector.scrape.targets import Target

_SERVICE: Final = re.compile(r"_[A-Za-z0-9-]+\._(?:tcp|udp)\.[A-Za-z0-9._-]+")
_TIMEOUT_S: Final = 5.0


def is_srv(name: str) -> bool:
    """Return whether a name is one of SRV records.

    Example:
        >>> is_srv("_metrics._tcp.engines.llm.svc"), is_srv("engines.llm.svc:8000")
        (True, False)
    """
    return _SERVICE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class SrvTargets:
    """The hosts and ports in the SRV records of a name: one target each.

    Attributes:
        service: the full name: no search domains are tried.
        path: of the page.
        server: address and port of a DNS server; `None` = those of the system.
        scheme: of each page, `http` or `https`.
        for_targets: the credentials for each target.
    """

    service: str
    path: str = "/metrics"
    server: tuple[str, int] | None = None
    scheme: str = "http"
    for_targets: Credentials = NONE_NEEDED

    @property
    def name(self) -> str:
        """The name that is resolved, for the log and the metrics."""
        return f"dns {self.service}"

    async def targets(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        """Look the records up again, and return a target for each; none if the name is gone.

        Raises:
            FetchError: no server answers, or not with such records.
        """
        del session
        try:
            resolver = asyncresolver.Resolver(configure=self.server is None)
            if self.server is not None:
                resolver.nameservers, resolver.port = [self.server[0]], self.server[1]
            answer = await resolver.resolve(self.service, "SRV", lifetime=_TIMEOUT_S, search=False)
        except (NXDOMAIN, NoAnswer):
            return []
        except LifetimeTimeout:
            raise FetchError("timeout", f"{self.name}: no server answered") from None
        except (DNSException, OSError) as error:
            raise FetchError("protocol", f"{self.name}: no answer of SRV records") from error
        found = {(record.target.to_text(omit_final_dot=True), record.port) for record in answer}
        # "." means that there is no such service
        return [
            Target(f"{self.scheme}://{host}:{port}{self.path}", credentials=self.for_targets)
            for host, port in sorted(found)
            if host not in {"", "."}
        ]
