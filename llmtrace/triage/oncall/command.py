"""The command `llmtrace triage serve`, from its options to its end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from llmtrace.api_clients.http_client import read_token
from llmtrace.core.errors import ConfigError, DataError, SourceError, missing_extra
from llmtrace.core.listen_address import bracketed, is_loopback, listen
from llmtrace.dataset.case import Window
from llmtrace.triage.command import links_of
from llmtrace.triage.oncall.alert_queue import AlertQueue, QueueSettings
from llmtrace.triage.oncall.notify import Annotated, Notifier, Webhook
from llmtrace.triage.oncall.report_store import Reports
from llmtrace.triage.report.links import Links
from llmtrace.triage.sources import Read

# Longer than Alertmanager's five minutes: it loses an alert that it sends as we close.
_KEEP_ALIVE_S: Final = 600
_TRIED_S: Final = 60.0
logger = logging.getLogger("llmtrace.oncall")
WEBHOOK_VARIABLE: Final = "LLMTRACE_TRIAGE_WEBHOOK"


def serve(options: argparse.Namespace, read: Read) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        options: as parsed.
        read: reads the source that they name, from `sources.reader`.

    Raises:
        ConfigError: an option is invalid, or a port that others can reach has no token.
        DataError, SourceError: the saved incident cannot be read.
    """
    links = _links(options)
    try:
        import uvicorn

        from llmtrace.triage.oncall.web import make_app
    except ImportError as error:
        raise missing_extra("llmtrace triage serve", "collector", error.name or "") from error
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    token = (
        None
        if options.listen_token_file is None
        else read_token(options.listen_token_file, "--listen-token-file")
    )
    host, port = _address(options.listen, token)
    reports = Reports(options.reports)
    reports.ready()
    channels = notifiers(options, os.environ)
    _try_source(read, saved=options.case is not None)
    listener = listen(host, port, "--listen HOST:PORT")
    where = f"http://{bracketed(host)}:{listener.getsockname()[1]}"
    public = (options.public_url or where).rstrip("/")
    queue = AlertQueue(
        lambda window, progress: read(window, progress, {}),
        reports,
        channels,
        # A saved incident is complete: nothing arrives later.
        QueueSettings(settle_s=0.0, retry_s=1.0) if options.case else None,
        link=lambda name: f"{public}/reports/{quote(name)}",
        links=links,
    )
    sys.stderr.write(f"llmtrace triage: alerts to {where}/alerts, reports at {where}/\n")
    if options.case is not None:
        sys.stderr.write(f"llmtrace triage: a rehearsal, with the case in {options.case}\n")
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(queue, reports, token, filter(None, (host, urlsplit(public).hostname))),
            log_config=None, access_log=False, ws="none", server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
    )  # fmt: skip
    # uvicorn raises SIGTERM again after it has stopped; the queue still has to be closed.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run([listener])
    finally:
        queue.close()


def _try_source(read: Read, *, saved: bool) -> None:
    """Check the source before the first alert: warn if it is away, fail for a saved case."""
    now = time.time()
    try:
        read(Window(now - _TRIED_S, now), lambda _what, _share: None, {})
    except (DataError, SourceError) as error:
        if saved:
            raise
        if isinstance(error, SourceError):  # a DataError: it responds, but has no new requests
            logger.warning("alerts cannot be triaged yet: %s", error)


def _links(options: argparse.Namespace) -> Links:
    """Return where traces and runbooks are; `ConfigError` if the source is a file of rows."""
    if options.rows is not None:
        raise ConfigError(
            "triage serve: alerts are of now; give --url, --store or --langfuse, or --case DIR to "
            "rehearse with a saved incident"
        )
    elsewhere = options.case or options.store or options.langfuse
    return links_of(options, None if elsewhere else options.url)


def notifiers(options: argparse.Namespace, environment: Mapping[str, str]) -> list[Notifier]:
    """Return the channels that are notified of reports.

    Raises:
        ConfigError: an address or a token file is invalid.
    """
    found: list[Notifier] = []
    url = environment.get(WEBHOOK_VARIABLE)
    if options.webhook_file is not None:
        url = read_token(options.webhook_file, "--webhook-file", "address")
    if url:
        found.append(Webhook(url))
    if options.grafana is not None:
        if options.grafana_token_file is None:
            raise ConfigError("--grafana needs --grafana-token-file: a token that may annotate")
        found.append(
            Annotated(
                options.grafana,
                read_token(options.grafana_token_file, "--grafana-token-file"),
                options.grafana_ca_file,
            )
        )
    return found


def _address(text: str, token: str | None) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:  # noqa: PLR2004
        raise ConfigError(f"--listen {text!r}: write host:port, as 127.0.0.1:4321")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--listen {text}: others can reach that; give --listen-token-file, and the same "
            "token to Alertmanager as `authorization.credentials_file`"
        )
    return host, int(port)
