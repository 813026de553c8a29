"""Run the `llmtrace dashboards` commands: lint, check, import and export."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from llmtrace.api_clients.http_client import read_token
from llmtrace.api_clients.prometheus_client import Prometheus
from llmtrace.budget import DEFAULT, Budget, read_budgets
from llmtrace.core.errors import DataError
from llmtrace_dashboards.boards import dashboards
from llmtrace_dashboards.export_files import Form, files, write
from llmtrace_dashboards.grafana_import.grafana_api import Remote
from llmtrace_dashboards.grafana_import.sync import Change, DesiredState, apply_changes, plan
from llmtrace_dashboards.lint import Finding, lint, read
from llmtrace_dashboards.lint.panel_data import describe, empty_panels, panel_counts
from llmtrace_dashboards.rules.burn_rate import RuleSettings
from llmtrace_dashboards.rules.command import warn_unalerted
from llmtrace_dashboards.rules.recording_rules import rule_files


def lint_files(
    paths: Sequence[Path],
    out: TextIO,
    *,
    exclude: Sequence[str],
    optional: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Lint dashboards, and print what is wrong with each.

    Raises:
        ConfigError: there is no such rule.
        DataError: something is wrong with one, or it cannot be read.
    """
    found: dict[Path, list[Finding]] = {
        path: lint(read(path), exclude, optional=optional) for path in paths
    }
    everything = [finding for findings in found.values() for finding in findings]
    if as_json:
        listed = [
            {"file": str(path), **dataclasses.asdict(finding)}
            for path, findings in found.items()
            for finding in findings
        ]
        out.write(json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
    else:
        for path, findings in found.items():
            out.write(f"{path}: {_counted(findings)}\n")
            out.writelines(f"  {finding}\n" for finding in findings)
    errors = [finding for finding in everything if strict or finding.severity == "error"]
    if errors:
        raise DataError(f"{_counted(everything)} in {_many(len(paths), 'dashboard')}")


def _counted(findings: Sequence[Finding]) -> str:
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    counts = [_many(errors, "error")] if errors else []
    counts += [_many(warnings, "warning")] if warnings else []
    return " and ".join(counts) or "no problems found"


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def check_data(
    server: Prometheus,
    out: TextIO,
    *,
    engines: Mapping[str, str],
    why: Mapping[str, str],
    engines_only: bool,
    as_json: bool,
) -> None:
    """Print which panels a Prometheus has no data for, and why.

    Args:
        server: the Prometheus.
        out: where to print.
        engines: the engines that it scrapes, by instance.
        why: the reason why a metric may be missing, by its name.
        engines_only: only the dashboards that need nothing but engines' metrics.
        as_json: print an object for each empty panel instead of lines.

    Raises:
        SourceError: it does not answer, or rejects a query.
    """
    made = list(dashboards(engines_only=engines_only).values())
    empty = list(empty_panels(server, made, why))
    if as_json:
        listed = [dataclasses.asdict(one) for one in empty]
        out.write(json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
        return
    out.writelines(f"{line}\n" for line in describe(empty, panel_counts(made), engines))


def import_dashboards(
    url: str,
    token_file: Path,
    out: TextIO,
    *,
    warnings: TextIO,
    wanted: Mapping[str, Any],
    alerts: bool,
    budget: Path | None,
    runbooks: str | None,
    ca_file: Path | None,
    timeout_s: float,
    dry_run: bool,
    engines_only: bool = False,
) -> None:
    """Import dashboards, and a data source and alerts if wanted, into a Grafana.

    Args:
        url: of the Grafana.
        token_file: holds a service account's token.
        out: where the changes are printed.
        warnings: where limits of a budget that get no alert are printed.
        wanted: fields of `DesiredState`, except dashboards and alerts.
        alerts: make the alerts of a budget Grafana-managed ones.
        budget: file of the budget of the alerts; default: the bundled budget.
        runbooks: the address of docs/on-call/runbooks.
        ca_file: certificates to trust.
        timeout_s: for each response.
        dry_run: print what would be done, and do nothing.
        engines_only: only the dashboards that need nothing but engines' metrics.

    Raises:
        ConfigError: an option is wrong.
        SourceError: Grafana cannot be reached, or rejects a request.
    """
    rules = _alert_rules(budget, url, runbooks, warnings) if alerts else []
    made = dashboards(runbooks, engines_only=engines_only)
    target = DesiredState(dashboards=list(made.values()), alerts=rules, **wanted)
    remote = Remote(url, read_token(token_file), ca_file=ca_file, timeout_s=timeout_s)
    try:
        changes = plan(remote, target)
        if dry_run:
            for change in changes:
                out.write(f"{_WORDS[change.action][0]:<12} {_described(change)}\n")
                out.writelines(f"    {line}\n" for line in change.diff.splitlines())
        else:
            for change in apply_changes(changes):
                out.write(f"{_WORDS[change.action][1]:<8} {_described(change)}\n")
                out.flush()
    finally:
        remote.close()
    counted = Counter(change.action for change in changes)
    verb = "would be made" if dry_run else "made"
    skipped = f", {counted['skip']} skipped" if counted["skip"] else ""
    open_changes = _many(counted["create"] + counted["update"], "change")
    out.write(f"{remote.url}: {open_changes} {verb}, {counted['same']} as wanted{skipped}\n")


def _described(change: Change) -> str:
    return f"{change.what}: {change.why}" if change.why else change.what


_WORDS = {
    "create": ("would create", "created"),
    "update": ("would change", "changed"),
    "same": ("same", "same"),
    "skip": ("would skip", "skipped"),
}


def _alert_rules(
    budget: Path | None, url: str, runbooks: str | None, warnings: TextIO
) -> list[dict[str, Any]]:
    budgets: Sequence[Budget] = [DEFAULT] if budget is None else read_budgets(budget).all
    warn_unalerted(budgets, warnings)
    settings = RuleSettings(dashboards=url, managed=True)
    if runbooks is not None:
        settings = dataclasses.replace(settings, runbooks=runbooks)
    groups = rule_files(budgets, settings)["alerts.yaml"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def export_dashboards(
    folder: Path, out: TextIO, *, form: Form, namespace: str, runbooks: str | None
) -> None:
    """Write dashboards to files.

    Raises:
        ConfigError: they cannot be written there.
    """
    made = files(dashboards(runbooks), form, namespace)
    changed = write(folder, made)
    out.writelines(f"written {path}\n" for path in changed)
    out.write(f"{_many(len(made), 'file')} in {folder}, {len(made) - len(changed)} as they were\n")
