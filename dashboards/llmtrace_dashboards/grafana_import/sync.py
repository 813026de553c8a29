"""Plan and carry out the changes that bring a Grafana up to date.

First everything is read, then the changes are planned, then made: a run that cannot succeed
changes little, and a second run changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from llmtrace import __version__
from llmtrace.core.errors import ConfigError
from llmtrace_dashboards.grafana_import.alert_rules import rule_groups
from llmtrace_dashboards.grafana_import.diff import difference, holds, marked, same
from llmtrace_dashboards.grafana_import.grafana_api import Remote

DATASOURCE_UID: Final = "llmtrace-prometheus"
_MESSAGE: Final = f"llmtrace {__version__}"

Action = Literal["create", "update", "same", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """What a Grafana should have.

    Attributes:
        dashboards: in its format.
        folder, folder_title: where they go; made if it is not there.
        datasource_url: a Prometheus to make a data source of; `None` = leave data sources alone.
        datasource_uid: uid of that data source, or of one that is there, for alerts.
        datasource_name: what a new one is called.
        scrape: how often that Prometheus scrapes; rates are over four of these.
        trace_url: where traces are, with `${__value.raw}` for the id; exemplars lead there.
        alerts: Prometheus's alert rules, to be made Grafana-managed ones; empty = none.
    """

    dashboards: Sequence[Mapping[str, Any]]
    folder: str = "llmtrace"
    folder_title: str = "llmtrace"
    datasource_url: str | None = None
    datasource_uid: str | None = None
    datasource_name: str = "llmtrace Prometheus"
    scrape: str = "15s"
    trace_url: str | None = None
    alerts: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing in Grafana: as wanted already, to be changed, or not changeable.

    Attributes:
        diff: what changes, as a unified diff; empty if nothing does.
        apply: makes the change.
        why: the reason why it is skipped.
    """

    what: str
    action: Action
    diff: str
    apply: Callable[[], None]
    why: str = ""


def plan(remote: Remote, wanted: DesiredState) -> list[Change]:
    """Look at everything, and return what is to be done, in this order.

    Raises:
        ConfigError: alerts are wanted, and no data source is named for them.
        SourceError: Grafana cannot be reached, or rejects a request.
    """
    if wanted.alerts and wanted.datasource_url is None and wanted.datasource_uid is None:
        raise ConfigError("--alerts needs the data source they ask: --datasource-uid UID")
    return list(_plan(remote, wanted))


def _plan(remote: Remote, wanted: DesiredState) -> Iterator[Change]:
    yield _folder(remote, wanted)
    if wanted.datasource_url is not None:
        yield _datasource(remote, wanted, wanted.datasource_url)
    for dashboard in wanted.dashboards:
        yield _dashboard(remote, dashboard, wanted.folder)
    source = wanted.datasource_uid or DATASOURCE_UID
    for group in rule_groups(wanted.alerts, wanted.folder, source):
        yield _alerts(remote, wanted.folder, group)


def _folder(remote: Remote, wanted: DesiredState) -> Change:
    there = remote.folder(wanted.folder) is not None
    return Change(
        what=f"folder {wanted.folder_title!r}",
        action="same" if there else "create",  # renamed by a person = still the folder
        diff="",
        apply=lambda: remote.make_folder(wanted.folder, wanted.folder_title),
    )


def _dashboard(remote: Remote, plain: Mapping[str, Any], folder: str) -> Change:
    dashboard = marked(plain)
    answer = remote.dashboard(str(dashboard["uid"]))
    found = None if answer is None else answer.get("dashboard")
    found = found if isinstance(found, Mapping) else None
    meta = (answer or {}).get("meta")
    moved = isinstance(meta, Mapping) and meta.get("folderUid") not in {None, folder}
    if found is not None and same(found, dashboard) and not moved:
        return _as_wanted(f"dashboard {dashboard['title']!r}")
    if isinstance(meta, Mapping) and meta.get("provisioned"):
        return _skipped(
            f"dashboard {dashboard['title']!r}",
            "it is provisioned from a file, and Grafana rejects other changes: write the "
            "file anew, by `llmtrace dashboards export --format provisioning`",
        )
    new = dict(dashboard)
    if found is not None:
        new["version"] = found.get("version", 0)
    diff = difference(found, dashboard, str(dashboard["uid"]))
    if moved:
        diff = f"moves to the folder {folder!r}\n{diff}"
    return Change(
        what=f"dashboard {dashboard['title']!r}",
        action="create" if found is None else "update",
        diff=diff,
        apply=lambda: remote.save_dashboard(new, folder, _MESSAGE),
    )


def _datasource(remote: Remote, wanted: DesiredState, url: str) -> Change:
    uid = wanted.datasource_uid or DATASOURCE_UID
    more: dict[str, Any] = {}
    if wanted.trace_url is not None:
        more["exemplarTraceIdDestinations"] = [{"name": "trace_id", "url": wanted.trace_url}]
    source = {
        "uid": uid,
        "name": wanted.datasource_name,
        "type": "prometheus",
        "access": "proxy",
        "url": url,
        "jsonData": {"timeInterval": wanted.scrape, "httpMethod": "POST", **more},
    }
    found = remote.datasource(uid)
    what = f"data source {wanted.datasource_name!r}"
    if found is not None and holds(found, source):
        return _as_wanted(what)
    if found is not None and found.get("readOnly"):
        return _skipped(
            what, "it is provisioned from a file, and Grafana rejects other changes: change "
            "the file, or name another uid with --datasource-uid",
        )  # fmt: skip
    merged = source
    if found is not None:
        # Other settings, such as how to log in, are kept.
        kept = found.get("jsonData")
        settings = {**(kept if isinstance(kept, Mapping) else {}), **_mapping(source["jsonData"])}
        merged = {**found, **source, "jsonData": settings}
    return Change(
        what=what,
        action="create" if found is None else "update",
        diff=difference(found, source, uid),
        apply=lambda: remote.save_datasource(merged, new=found is None),
    )


def _alerts(remote: Remote, folder: str, group: dict[str, Any]) -> Change:
    found = remote.rule_group(folder, group["title"])
    what = f"{len(group['rules'])} alert rules of {group['title']!r}"
    there = _mapping(found).get("rules") or ()
    paused = {rule.get("uid") for rule in there if rule.get("isPaused")}
    for rule in group["rules"]:
        rule["isPaused"] = rule["uid"] in paused  # as people have set it
    if found is not None and holds(found, group):
        return _as_wanted(what)
    return Change(
        what=what,
        action="update" if there else "create",
        diff=difference(found, group, group["title"]),
        apply=lambda: remote.save_rule_group(folder, group),
    )


def _as_wanted(what: str) -> Change:
    return Change(what=what, action="same", diff="", apply=_nothing)


def _skipped(what: str, why: str) -> Change:
    return Change(what=what, action="skip", diff="", apply=_nothing, why=why)


def _nothing() -> None:
    """Do nothing: it is as it should be."""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def apply_changes(changes: Sequence[Change]) -> Iterator[Change]:
    """Do what is to be done, and yield each change that was made or skipped.

    Raises:
        SourceError: Grafana refuses one; those before it are made.
    """
    for change in changes:
        if change.action != "same":
            change.apply()
            yield change
