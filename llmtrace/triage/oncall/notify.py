"""Notify people of a report: a chat by its incoming webhook, Grafana by an annotation.

Addresses of webhooks are secrets, like tokens: neither appears in a log or an error.
"""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from llmtrace.api_clients.http_client import is_address, opener
from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.triage.oncall.alert import Alert
from llmtrace.triage.report.naming import PART_NAMES, headline, signed, unit, verdict_words
from llmtrace.triage.report.next_steps import next_steps, would_settle
from llmtrace.triage.report.sentences import (
    cohort_text,
    event_text,
    first_cause,
    has_split,
    impact_text,
    similar_text,
    when,
)
from llmtrace.triage.result import NAMED, Result, as_json

_TIMEOUT_S: Final = 10.0
_MS: Final = 1000
_MAX_PARTS: Final = 3
TAG: Final = "llmtrace"  # the dashboards select annotations by it


class Notifier(Protocol):
    """A channel that notifies people; raises `SourceError` if that fails."""

    def notify(self, alert: Alert, result: Result, link: str | None) -> None:
        """Notify people of one triaged alert; `link` is its report's address, if it has one."""


def summary(alert: Alert, result: Result, link: str | None) -> str:
    """Summarise a result in a few lines, for a chat or an annotation."""
    lines = [f"{alert.title}: {verdict_words(result)[0]}: {headline(result)}", *result.about[1:]]
    lines += result.quality.doubts
    lines.append(result.reason)
    lines += when(result)[:-2]
    moved = sorted(
        (one for one in result.contributions if one.significant), key=lambda one: -abs(one.seconds)
    )
    if moved and has_split(result):
        in_ = unit(result)
        parts = (
            f"{PART_NAMES.get(one.name, one.name)} {signed(one.seconds, in_)} {in_}"
            for one in moved[:_MAX_PARTS]
        )
        lines.append(f"where: {', '.join(parts)}")
    lines += [f"impact: {text}" for text in impact_text(result)]
    if result.localised and result.cohorts:
        lines.append(f"affected: {cohort_text(result.cohorts[0], unit(result))}")
    if result.events:
        lines.append(event_text(result.events[0], result.onset))
    lines += first_cause(result)
    actions = [one.action for one in result.causes if one.status in NAMED][:1]
    lines += [f"do: {text}" for text in (*next_steps(result), *actions)]
    lines += [f"would settle it: {text}" for text in would_settle(result)]
    if result.similar:
        lines.append(f"seen before: {similar_text(result.similar[0])}")
    if link is not None:
        lines.append(link)
    return "\n".join(lines)


_OPENER: Final = opener(proxies=True)  # a chat may only be reachable through a proxy


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that accepts `{"text": …}`, such as Slack's incoming webhooks."""

    url: str = field(repr=False)

    def __post_init__(self) -> None:
        if not is_address(self.url):
            raise ConfigError("the webhook's address is none: write https://…")

    def notify(self, alert: Alert, result: Result, link: str | None) -> None:
        """Post the summary to the webhook. Raises `SourceError`."""
        text = _escaped(summary(alert, result, link))
        request = urllib.request.Request(  # noqa: S310 - http or https, see above
            self.url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
        )
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_S):
                pass
        except (OSError, HTTPException, ValueError) as error:
            # Without the error's text, which may contain the address.
            status = getattr(error, "code", None)
            words = f"responded {status}" if status else "does not respond"
            raise SourceError(f"the webhook at {urlsplit(self.url).hostname} {words}") from None


def _escaped(text: str) -> str:
    """Escape what Slack would read as mentions and links, since names come from outside."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Annotated:
    """A Grafana whose dashboards show a report's summary at the time of the incident.

    Args:
        url: of Grafana.
        token: of a service account that may write annotations.
        ca_file: certificates to trust, if no public one signed Grafana's own.

    Raises:
        ConfigError: the package `grafana-client` is not installed, or the address or file is
            invalid.
    """

    def __init__(self, url: str, token: str, ca_file: Path | None = None) -> None:
        from llmtrace.api_clients.grafana_client import Grafana, GrafanaOptions

        options = GrafanaOptions(
            url="--grafana",
            token_file="--grafana-token-file",  # noqa: S106 - the name of an option
            ca_file="--grafana-ca-file",
            timeout=None,
            role="the right to write annotations, which the role Editor has",
        )
        self._grafana = Grafana(url, token, options, ca_file=ca_file, timeout_s=_TIMEOUT_S)

    def notify(self, alert: Alert, result: Result, link: str | None) -> None:
        """Annotate the time of the incident in Grafana. Raises `SourceError`."""
        start = alert.started if result.onset is None else result.onset.best
        end = alert.ended or (None if result.after.window is None else result.after.window.end)
        with self._grafana.requesting("annotation"):
            self._grafana.api.annotations.add_annotation(
                time_from=round(start * _MS),
                time_to=None if end is None else round(max(end, start) * _MS),
                tags=[TAG, alert.name, result.verdict],
                text=_escaped(summary(alert, result, link)),
            )


def as_report(name: str, alert: Alert, result: Result, at: float) -> dict[str, Any]:
    """Return the content to store: the alert, when it was triaged, the title, the result."""
    return {
        "name": name,
        "alert": {"name": alert.name, "started": alert.started, "labels": dict(alert.labels)},
        "triaged": at,
        "title": f"{verdict_words(result)[0]}: {headline(result)}",
        "result": as_json(result),
    }
