"""Find targets by name or by label: the addresses of a DNS name, and pods in Kubernetes.

Both are looked up again and again, so that new targets are read and those that are gone are not;
pods also whenever Kubernetes reports a change.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp

from llmtrace.api_clients.http_client import read_token
from llmtrace.core.errors import ConfigError
from llmtrace.core.listen_address import bracketed
from llmtrace_collector.scrape.credentials import NONE_NEEDED, Credentials
from llmtrace_collector.scrape.fetch import FetchError, fetch, read_json
from llmtrace_collector.scrape.target_tls import TlsFiles
from llmtrace_collector.scrape.targets import Target

# Where Kubernetes puts a pod's credentials: its token is renewed there.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_BYTES: Final = 32 << 20
_PODS_AT_ONCE: Final = 500
_MAX_PAGES: Final = 100
_TIMEOUT_S: Final = 10.0
_WATCH_S: Final = 300


@dataclass(frozen=True, slots=True)
class DnsTargets:
    """The addresses of a DNS name, such as a headless Service: one target each.

    Attributes:
        host: the name; port and path are the same at each of its addresses.
        scheme: of each page; a certificate must name the host, or what `for_targets` says.
        for_targets: the credentials for each target.
    """

    host: str
    port: int
    path: str = "/metrics"
    scheme: str = "http"
    for_targets: Credentials = NONE_NEEDED

    @property
    def name(self) -> str:
        """The name that is resolved, for the log and the metrics."""
        return f"dns {bracketed(self.host)}:{self.port}"

    async def targets(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        """Resolve the name again, and return a target for each of its addresses.

        Raises:
            FetchError: it cannot be resolved now.
        """
        del session
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise FetchError("connect", f"{self.name}: {error.strerror or error}") from error
        credentials = self.for_targets
        if self.scheme == "https" and credentials.server_name is None:
            tls = replace(credentials.tls or TlsFiles(), server_name=self.host)
            credentials = replace(credentials, tls=tls)
        return [
            Target(_url(self.scheme, address, self.port, self.path), credentials=credentials)
            for address in sorted({str(one[4][0]) for one in found})
        ]


@dataclass(frozen=True, slots=True)
class KubernetesPods:
    """Running pods by label, as Kubernetes' API lists them.

    Attributes:
        selector: of labels, such as `app=vllm`.
        port: of each pod's page.
        namespace: of the pods; "" = the one this pod runs in.
        path: of the page.
        api: address of the API; "" = that of the cluster this runs in.
        account: the folder with `token`, `ca.crt` and `namespace`.
        scheme: of each page, `http` or `https`.
        for_targets: the credentials for each pod's page.
        seen: the version of the list that was read last; changes after it are watched.
    """

    selector: str
    port: int
    namespace: str = ""
    path: str = "/metrics"
    api: str = ""
    account: Path = ACCOUNT
    scheme: str = "http"
    for_targets: Credentials = NONE_NEEDED
    seen: list[str] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def name(self) -> str:
        """What is looked for, for the log and the metrics."""
        return f"kubernetes {self.namespace or 'own namespace'} {self.selector}"

    async def targets(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        """List the pods again, and return a target for each that runs and is not being removed.

        Raises:
            FetchError: the API cannot be reached, or does not let us list pods.
        """
        try:
            return await self._list(session)
        except FetchError as error:
            if error.status != HTTPStatus.GONE:
                raise
            # Kubernetes has dropped the version of the list that its next page belongs to.
            return await self._list(session)

    async def changed(self, session: aiohttp.ClientSession) -> None:
        """Return when a pod has come, changed or gone since `targets` was called last.

        Also where that version of the list is too old to be watched: the list is read again. Where
        the API allows listing but not watching, never returns: the regular refresh has to do.
        """
        query = {
            "labelSelector": self.selector, "watch": "1", "resourceVersion": "".join(self.seen),
            "timeoutSeconds": str(_WATCH_S),
        }  # fmt: skip
        try:
            await self._get(session, query, timeout_s=_WATCH_S + _TIMEOUT_S, first_line=True)
        except FetchError as error:
            if error.status != HTTPStatus.GONE:
                await asyncio.Event().wait()

    async def _list(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        found: list[Target] = []
        query = {"labelSelector": self.selector, "limit": str(_PODS_AT_ONCE)}
        for _ in range(_MAX_PAGES):
            page = await self._page(session, query)
            found += [one for pod in page.get("items") or () if (one := self._target(pod))]
            about = page.get("metadata") or {}
            self.seen[:] = [str(about.get("resourceVersion", ""))]
            if not (following := about.get("continue")):
                break
            query["continue"] = str(following)
        return found

    def _server(self) -> str:
        if self.api:
            return self.api.rstrip("/")
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        if not host:
            raise FetchError("connect", f"{self.name}: this runs in no cluster, and has no `api`")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        return f"https://{bracketed(host)}:{port}"

    def _read(self, file: str) -> str:
        try:
            return read_token(self.account / file, "account")
        except ConfigError as error:
            raise FetchError("token", f"{self.name}: {error}") from error

    async def _get(
        self,
        session: aiohttp.ClientSession,
        query: Mapping[str, str],
        *,
        timeout_s: float = _TIMEOUT_S,
        first_line: bool = False,
    ) -> str:
        """Return what the API answers about the pods of the namespace."""
        namespace = self.namespace or self._read("namespace")
        url = f"{self._server()}/api/v1/namespaces/{quote(namespace, safe='')}/pods?"
        authority, token = self.account / "ca.crt", self.account / "token"
        credentials = Credentials(
            token_file=token if token.exists() else None,
            tls=TlsFiles(ca=authority) if authority.exists() else None,
        )
        return await fetch(
            session,
            url + urlencode(query),
            timeout_s=timeout_s,
            size=_MAX_BYTES,
            authorization=credentials.authorization(self.name),
            tls=credentials.context(self.name),
            first_line=first_line,
        )

    async def _page(
        self, session: aiohttp.ClientSession, query: Mapping[str, str]
    ) -> Mapping[str, Any]:
        page = read_json(await self._get(session, query), self.name)
        if not isinstance(page, Mapping) or not isinstance(page.get("items") or [], list):
            raise FetchError("page", f"{self.name}: the API did not answer a list")
        return page

    def _target(self, pod: Any) -> Target | None:
        """Make a pod's target; `None` = it does not run, or is being removed."""
        try:
            about, status = pod["metadata"], pod["status"]
            address = status.get("podIP")
            if status.get("phase") != "Running" or about.get("deletionTimestamp") or not address:
                return None
            labels = (("namespace", str(about["namespace"])), ("pod", str(about["name"])))
            url = _url(self.scheme, str(address), self.port, self.path)
            return Target(url, labels, self.for_targets)
        except (KeyError, TypeError, AttributeError):
            return None


def _url(scheme: str, address: str, port: int, path: str) -> str:
    return f"{scheme}://{bracketed(address)}:{port}{path}"
