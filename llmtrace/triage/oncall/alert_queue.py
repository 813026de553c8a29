"""Triage each incoming alert once, store the report and notify people.

One thread works through a bounded queue, which outlives a restart: it is in the folder of the
reports, too. A report that cannot be delivered is stored anyway, and the failure is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import Final

import numpy as np

from llmtrace.core.errors import DataError, LlmtraceError
from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import WORDS
from llmtrace.display.summary_tables import date_and_zone
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.oncall.alert import Alert
from llmtrace.triage.oncall.notify import Notifier, as_report
from llmtrace.triage.oncall.report_store import Reports
from llmtrace.triage.oncall.similar import similar_reports
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.html import page
from llmtrace.triage.report.links import Links
from llmtrace.triage.report.sentences import only
from llmtrace.triage.result import Result
from llmtrace.triage.sources import Progress

logger = logging.getLogger("llmtrace.oncall")

_HOUR_S: Final = 3600.0
_NEAR_S: Final = 60.0
_MAX_KNOWN: Final = 10_000
_MAX_PAUSE_S: Final = 300.0
_NOT_FILTERS: Final = frozenset({"outcome", "finish_reason", "error_type"})

# Verdicts for which an alert is tried again: it may have only begun.
_TOO_EARLY: Final = frozenset({"not_enough_data", "no_change"})

# Reads the case of a window.
Load = Callable[[Window, Progress], Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How alerts are processed.

    Attributes:
        back_s: how long before an alert to look.
        settle_s: how long to wait until an alert's requests are stored.
        max_waiting: alerts in the queue; others are rejected, and their sender sends them again.
        attempts: at most, for an alert whose data are invalid or do not suffice yet.
        retry_s: wait before the second attempt; it doubles up to 5 min.
    """

    back_s: float = 3 * _HOUR_S
    settle_s: float = 5.0
    max_waiting: int = 100
    attempts: int = 3
    retry_s: float = 10.0


class Full(Exception):  # noqa: N818 - the state of the queue
    """Raised with the reason if alerts cannot be queued; their sender sends them again."""


@dataclass(slots=True)
class _Queued:
    """An alert in the queue: when it is due, in monotonic seconds, and how often it was tried.

    Attempts are counted since the source responds; `pause_s` is the wait before the latest one.
    """

    alert: Alert
    due: float
    attempts: int = 0
    pause_s: float = 0.0


class AlertQueue:
    """Triages alerts one after the other, pages first, on its own thread.

    Args:
        load: reads rows and signals.
        reports: where reports are stored.
        notifiers: channels that are notified of each report.
        settings: how alerts are processed.
        link: makes the address of a report from its name; `None` = reports have no address.
        links: where traces and runbooks are, for reports to link to.

    Attributes:
        counts: alerts and reports by what happened to them.
    """

    def __init__(
        self,
        load: Load,
        reports: Reports,
        notifiers: Sequence[Notifier] = (),
        settings: QueueSettings | None = None,
        *,
        link: Callable[[str], str] | None = None,
        links: Links | None = None,
    ) -> None:
        self._load = load
        self._reports = reports
        self._notifiers = notifiers
        self._settings = settings or QueueSettings()
        self._link = link
        self._links = links
        self._waiting = [_Queued(alert, time.monotonic()) for alert in reports.queued()]
        self._working: Alert | None = None
        # Names of reports, in order of arrival.
        self._known = {reports.named(one.alert): None for one in self._waiting}
        self._changed = threading.Condition()
        self._closing = False
        self.counts: Counter[str] = Counter()
        self._unwritable: str | None = None
        self._away: str | None = None
        if self._waiting:
            logger.info("%d alerts were still queued: they are triaged now", len(self._waiting))
        self._thread = threading.Thread(target=self._run, name="llmtrace oncall", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why the last report was not written, or the source not read; `None` = they were."""
        return self._unwritable or self._away

    def take(self, alerts: Iterable[Alert]) -> int:
        """Queue the alerts that are firing and new; return how many.

        Raises:
            Full: there was not room for all, and as many as there was room for are queued; or they
                cannot be written to the folder.
        """
        with self._changed:
            new: dict[str, Alert] = {}
            for alert in alerts:
                name = self._reports.named(alert)
                if alert.ended is not None or name in self._known or self._reports.has(name):
                    self.counts["repeated"] += 1
                else:
                    new[name] = alert
            room = max(0, self._settings.max_waiting - len(self._waiting))
            taken = dict(
                takewhile(
                    lambda one: self._written(partial(self._reports.enqueue, *one)),
                    islice(new.items(), room),
                )
            )
            self._known.update(dict.fromkeys(taken))
            while len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            due = time.monotonic() + self._settings.settle_s
            self._waiting += [_Queued(alert, due) for alert in taken.values()]
            self.counts["taken"] += len(taken)
            self._changed.notify_all()
            if rejected := len(new) - len(taken):
                self.counts["rejected"] += rejected
                raise Full(self._away or "busy" if len(taken) == room else self._unwritable)
        return len(taken)

    def unfinished(self) -> list[Alert]:
        """Return the alert being triaged and those waiting."""
        with self._changed:
            waiting = [one.alert for one in self._waiting]
            return waiting if self._working is None else [self._working, *waiting]

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish the current alert, and end the thread; the others wait for the next start."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if left := len(self.unfinished()):
            logger.warning("%d alerts are still queued; the next start triages them", left)

    def _next(self) -> _Queued | None:
        """Wait until an alert is due, and take it out; `None` = the queue is closing."""
        with self._changed:
            self._working = None
            while not self._closing:
                now = time.monotonic()
                if due := [one for one in self._waiting if one.due <= now]:
                    # Pages wake people, so they go first.
                    chosen = min(due, key=lambda one: one.alert.labels.get("severity") != "page")
                    self._waiting.remove(chosen)
                    self._working = chosen.alert
                    return chosen
                self._changed.wait(min((one.due - now for one in self._waiting), default=None))
        return None

    def _run(self) -> None:
        while (one := self._next()) is not None:
            one.attempts += 1
            try:
                done = self._work(one)
            except Exception:  # one alert that fails must not end the thread
                done = True
                self._failed(one.alert)
                logger.exception("alert %s could not be triaged", one.alert.id)
            if not done:  # the others need not wait for it
                one.pause_s = min(max(2 * one.pause_s, self._settings.retry_s), _MAX_PAUSE_S)
                one.due = time.monotonic() + one.pause_s
                with self._changed:
                    self._waiting.append(one)

    def _work(self, one: _Queued) -> bool:
        """Triage an alert; return whether that is finished, or false to try it again later.

        While the source does not respond or the report cannot be written, it is tried again as
        often as it takes; if the data are invalid or show nothing yet, as an incident that has
        only begun shows more later, a few times.
        """
        alert = one.alert
        last = one.attempts >= self._settings.attempts
        back_s = self._settings.back_s
        # However long it waits, it reads no more and more.
        window = Window(alert.started - back_s, min(time.time(), alert.started + back_s))
        try:
            case = self._load(window, lambda _what, _share: None)
            result = triage_alert(case, alert, time.time())
        except DataError as error:
            self._away = None
            logger.warning("alert %s%s: %s", alert.id, " is given up" if last else "", error)
            if last:
                self._failed(alert)
            return last
        except LlmtraceError as error:
            self._away = f"alerts cannot be triaged: {error}"
            logger.warning("alert %s waits: %s", alert.id, error)
            one.attempts = 0
            return False
        self._away = None
        if result.verdict in _TOO_EARLY and not last:
            logger.info("alert %s: too little to see yet", alert.id)
            return False
        name = self._reports.named(alert)
        result = replace(result, similar=similar_reports(self._reports, result, alert, name))
        report = as_report(name, alert, result, time.time())
        html = page(result, case, self._links)
        if not self._written(partial(self._reports.keep, name, report, html)):
            return False
        self.counts["triaged"] += 1
        logger.info("alert %s: %s", alert.id, result.verdict)
        link = None if self._link is None else self._link(name)
        for channel in self._notifiers:
            try:
                channel.notify(alert, result, link)
            except LlmtraceError as error:
                self.counts["not_delivered"] += 1
                logger.warning("report %s: %s", name, error)
        return True

    def _written(self, write: Callable[[], None]) -> bool:
        """Write to the folder; return whether that was possible."""
        try:
            write()
        except OSError as error:
            self._unwritable = f"reports cannot be written: {error}"
            logger.warning("%s", self._unwritable)
            return False
        self._unwritable = None
        return True

    def _failed(self, alert: Alert) -> None:
        """Count a failure, and accept the alert again when its sender repeats it."""
        self.counts["failed"] += 1
        name = self._reports.named(alert)
        with self._changed:
            self._known.pop(name, None)
        self._reports.dequeue(name)


def triage_alert(case: Case, alert: Alert, now: float) -> Result:
    """Triage the time of an alert, for the requests and the metric that its labels name.

    Labels that no row has belong to the rule, not to requests, so they are no filter. The result
    says so, and which alert it is about.
    """
    rows, filters = case.rows, {}
    about = [f"alert {alert.title} of {date_and_zone(alert.started)}"]
    for name, value in alert.labels.items():
        if name in WORDS and name not in _NOT_FILTERS and value:
            mask = rows.words[name].where(value)
            if np.any(mask):
                rows, filters[name] = rows.take(mask), [value]
            else:
                about.append(f"not filtered by {name}={value}, which no request has")
    slo = alert.labels.get("slo")
    metric = next((name for name in METRICS if name == slo), None)
    if not filters and metric is None and len(about) == 1:
        about.append("all requests are searched: llmtrace knows none of the alert's labels")
    result = triage(replace(case, rows=rows), Settings(at=min(alert.started, now), metric=metric))
    window = result.after.window
    if rows.n and not (np.abs(rows.start / 1e9 - alert.started) <= _NEAR_S).any():
        about.append("no request began within a minute of it")
    elif window and not window.start - _NEAR_S <= alert.started <= window.end + _NEAR_S:
        about.append("what stands out is at another time")
    return replace(result, about=(about[0], *only(filters), *about[1:]))
