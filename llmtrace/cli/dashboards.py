"""Declare `llmtrace dashboards`: import them into Grafana, export them, check what they show."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from llmtrace.cli.arguments import Commands, add_budget_option, add_command, add_json, add_timeout
from llmtrace.cli.extras import collector_module, dashboards_module
from llmtrace.cli.slo import write_engine_rules
from llmtrace.core.errors import ConfigError

_DOCS = "operate/dashboards.md"


def add_dashboards(commands: Commands) -> None:
    """Declare the commands of `llmtrace dashboards`."""
    dashboards = add_command(
        commands,
        "dashboards",
        _dashboards,
        "import llmtrace's Grafana dashboards, export them to files, or check dashboards",
        "Import llmtrace's dashboards into a Grafana, export them to files, ask a Prometheus "
        "which of their panels it has no data for, or lint your own.",
        examples=(
            "llmtrace dashboards import --url https://grafana.example.org --token-file token",
            "llmtrace dashboards export --out dashboards",
            "llmtrace dashboards check --prometheus http://127.0.0.1:9090 --engines-only",
            "llmtrace dashboards lint my-dashboard.json",
        ),
        docs=_DOCS,
    )
    kinds = dashboards.add_subparsers(dest="what", metavar="WHAT", required=True)
    _add_lint(kinds)
    _add_check(kinds)
    _add_import(kinds)
    _add_export(kinds)


def _add_lint(kinds: Commands) -> None:
    lint = add_command(
        kinds,
        "lint",
        _dashboards,
        "check dashboards: data sources, units, queries, what Grafana would ignore",
        "Check any dashboards, as files: data sources, descriptions, units, queries, and what "
        "Grafana would ignore without a message. Exit status 1 = something is wrong.",
        examples=(
            "llmtrace dashboards lint my-dashboard.json",
            "llmtrace dashboards lint *.json --strict --json",
        ),
        docs=_DOCS,
    )
    lint.add_argument("file", type=Path, nargs="+", metavar="FILE", help="dashboard, as JSON")
    lint.add_argument(
        "--exclude", action="append", default=[], metavar="RULE",
        help="rule to leave out; may be repeated",
    )  # fmt: skip
    lint.add_argument(
        "--all", action="store_true", help="require the variables `job` and `instance`, too"
    )
    lint.add_argument("--strict", action="store_true", help="warnings are errors")
    add_json(lint, "lines")


def _add_check(kinds: Commands) -> None:
    check = add_command(
        kinds,
        "check",
        _dashboards,
        "ask a Prometheus which panels it has no data for, and say why",
        "Run the queries of llmtrace's dashboards in a Prometheus and say which panels stay "
        "empty, and why: no such engine, a version, a flag, or rules that are not loaded.",
        examples=("llmtrace dashboards check --prometheus http://127.0.0.1:9090 --engines-only",),
        docs=_DOCS,
    )
    _add_prometheus(check, required=True)
    add_json(check, "text")


def _add_prometheus(command: argparse.ArgumentParser, *, required: bool = False) -> None:
    command.add_argument(
        "--prometheus", required=required, metavar="URL",
        help="address of the Prometheus to ask which panels stay empty"
        + ("" if required else " (default: --datasource-url)"),
    )  # fmt: skip
    command.add_argument(
        "--prometheus-token-file",
        type=Path,
        metavar="FILE",
        help="file with its token, or with `Basic ` and the base64 of user:password",
    )
    command.add_argument(
        "--engines-only", action="store_true",
        help="only the dashboards that need engines' own metrics alone: no collector, no "
        "instrumented application",
    )  # fmt: skip


def _add_import(kinds: Commands) -> None:
    importing = add_command(
        kinds,
        "import",
        _dashboards,
        "put them into a Grafana; a second time changes nothing",
        "Put the dashboards into a Grafana through its API: folder, dashboards and, on request, a "
        "data source and alert rules. A second run changes what differs, and nothing else.",
        examples=(
            "llmtrace dashboards import --url https://grafana.example.org --token-file token",
            "llmtrace dashboards import --url https://grafana --token-file token --dry-run",
            "llmtrace dashboards import --url https://grafana --token-file token --engines-only",
        ),
        docs=_DOCS,
    )
    _add_grafana(importing)
    _add_data_source(importing)
    importing.add_argument(
        "--alerts", action="store_true", help="add the budget's alerts as Grafana-managed ones"
    )
    add_budget_option(importing)
    _add_prometheus(importing)
    importing.add_argument(
        "--rules", type=Path, metavar="DIR",
        help="folder of that Prometheus's rules to write those of `llmtrace slo engines` to; it "
        "then reloads them",
    )  # fmt: skip
    importing.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="certificates to trust, as PEM"
    )
    add_timeout(importing)
    _add_runbooks(importing)


def _add_grafana(importing: argparse.ArgumentParser) -> None:
    importing.add_argument(
        "--url", required=True, metavar="URL", help="address of the Grafana's start page"
    )
    importing.add_argument(
        "--token-file", type=Path, required=True, metavar="FILE",
        help="file with a service account's token",
    )  # fmt: skip
    importing.add_argument(
        "--dry-run", action="store_true", help="show what would change, and change nothing"
    )
    importing.add_argument(
        "--folder",
        default="llmtrace",
        metavar="TITLE",
        help="title of the folder (default: llmtrace)",
    )
    importing.add_argument(
        "--folder-uid",
        default="llmtrace",
        metavar="UID",
        help="uid of the folder (default: llmtrace)",
    )


def _add_data_source(importing: argparse.ArgumentParser) -> None:
    importing.add_argument(
        "--datasource-url", metavar="URL", help="address of a Prometheus to add as a data source"
    )
    importing.add_argument(
        "--datasource-uid", metavar="UID",
        help="uid of that data source, or of an existing one that alerts are to query",
    )  # fmt: skip
    importing.add_argument(
        "--scrape", default="15s", metavar="TIME",
        help="scrape interval of that Prometheus (default: 15s)",
    )  # fmt: skip
    importing.add_argument(
        "--trace-url", metavar="URL",
        help="address of a trace, with ${__value.raw} for its id: exemplars link to it",
    )  # fmt: skip


def _add_export(kinds: Commands) -> None:
    export = add_command(
        kinds,
        "export",
        _dashboards,
        "write them to files: for provisioning, or for Kubernetes",
        "Write the dashboards to a folder: as they are, as a provisioning folder, as ConfigMaps "
        "for the sidecar of Grafana's Helm chart, or for sharing, as on grafana.com.",
        examples=(
            "llmtrace dashboards export --out dashboards",
            "llmtrace dashboards export --out manifests --format configmap --namespace monitoring",
        ),
        docs=_DOCS,
    )
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    export.add_argument(
        "--format", choices=("files", "provisioning", "configmap", "sharing"), default="files",
        help="kind of files (default: files)",
    )  # fmt: skip
    export.add_argument(
        "--namespace", default="monitoring", metavar="NAME",
        help="namespace of the ConfigMaps (default: monitoring)",
    )  # fmt: skip
    _add_runbooks(export)


def _add_runbooks(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--runbooks", metavar="URL", help="address of docs/on-call/runbooks, which causes link to"
    )


def _dashboards(options: argparse.Namespace) -> None:
    commands = dashboards_module("command", "llmtrace dashboards")
    if options.what == "lint":
        commands.lint_files(
            options.file,
            sys.stdout,
            exclude=options.exclude,
            optional=options.all,
            strict=options.strict,
            as_json=options.json,
        )
    elif options.what == "export":
        commands.export_dashboards(
            options.out,
            sys.stdout,
            form=options.format,
            namespace=options.namespace,
            runbooks=options.runbooks,
        )
    elif options.what == "check":
        _check(options, options.prometheus, as_json=options.json)
    else:
        _import(options, commands)


def _import(options: argparse.Namespace, commands: Any) -> None:
    prometheus = options.prometheus or options.datasource_url
    if options.rules is not None and not options.dry_run:
        _load_rules(options, prometheus)
    if prometheus is not None and (options.engines_only or options.prometheus):
        _check(options, prometheus)
    elif options.engines_only:
        sys.stdout.write("which panels stay empty is not known: --prometheus URL asks it\n")
    commands.import_dashboards(
        options.url,
        options.token_file,
        sys.stdout,
        warnings=sys.stderr,
        wanted={
            "folder": options.folder_uid,
            "folder_title": options.folder,
            "datasource_url": options.datasource_url,
            "datasource_uid": options.datasource_uid,
            "scrape": options.scrape,
            "trace_url": options.trace_url,
        },
        alerts=options.alerts,
        budget=options.budget,
        runbooks=options.runbooks,
        ca_file=options.ca_file,
        timeout_s=options.timeout,
        dry_run=options.dry_run,
        engines_only=options.engines_only,
    )


def _check(options: argparse.Namespace, prometheus: str, *, as_json: bool = False) -> None:
    """Print which panels of the dashboards stay empty with a Prometheus, and why."""
    # Not at the top: it brings HTTP and TLS along.
    from llmtrace.api_clients.prometheus_client import Prometheus

    server = Prometheus(prometheus, options.prometheus_token_file)
    gaps = collector_module("scrape.prometheus_gaps", "--prometheus").engine_gaps(server)
    commands = dashboards_module("command", "llmtrace dashboards check")
    commands.check_data(
        server,
        sys.stdout,
        engines=gaps.engines,
        why=gaps.why,
        engines_only=options.engines_only,
        as_json=as_json,
    )


def _load_rules(options: argparse.Namespace, prometheus: str | None) -> None:
    """Write the rules that normalise engines' metrics, and have Prometheus load them."""
    if prometheus is None:
        raise ConfigError("--rules: name the Prometheus that reads that folder by --prometheus")
    write_engine_rules(options.budget, options.rules)
    # Not at the top: it brings HTTP and TLS along.
    from llmtrace.api_clients.prometheus_client import Prometheus

    server = Prometheus(prometheus, options.prometheus_token_file)
    if not server.reload():
        sys.stdout.write(
            f"{server.url} does not reload by its API (without --web.enable-lifecycle): send it "
            "SIGHUP, and see `llmtrace dashboards check`\n"
        )
    elif not collector_module("scrape.prometheus_gaps", "--rules").recorded(server):
        sys.stdout.write(
            f"{server.url} was reloaded and records nothing: are the files of {options.rules} "
            "under its `rule_files`, and an engine among its targets?\n"
        )
