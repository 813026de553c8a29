"""Declare `llmtrace dashboards`: import them into Grafana, export them to files, check them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.arguments import (
    Commands,
    add_budget_option,
    add_command,
    add_json,
    add_timeout,
)
from llmtrace.cli.extras import dashboards_module

_DOCS = "dashboards.md"


def add_dashboards(commands: Commands) -> None:
    """Declare the commands of `llmtrace dashboards`."""
    dashboards = add_command(
        commands,
        "dashboards",
        _dashboards,
        "import llmtrace's Grafana dashboards, export them to files, or check dashboards",
        "Import llmtrace's dashboards into a Grafana, export them to files, or check your own.",
        examples=(
            "llmtrace dashboards import --url https://grafana.example.org --token-file token",
            "llmtrace dashboards export --out dashboards",
            "llmtrace dashboards lint my-dashboard.json",
        ),
        docs=_DOCS,
    )
    kinds = dashboards.add_subparsers(dest="what", metavar="WHAT", required=True)
    _add_lint(kinds)
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


def _add_import(kinds: Commands) -> None:
    bring = add_command(
        kinds,
        "import",
        _dashboards,
        "put them into a Grafana; a second time changes nothing",
        "Put the dashboards into a Grafana through its API: folder, dashboards and, on request, a "
        "data source and alert rules. A second run changes what differs, and nothing else.",
        examples=(
            "llmtrace dashboards import --url https://grafana.example.org --token-file token",
            "llmtrace dashboards import --url https://grafana --token-file token --dry-run",
        ),
        docs=_DOCS,
    )
    bring.add_argument(
        "--url", required=True, metavar="URL", help="address of the Grafana's start page"
    )
    bring.add_argument(
        "--token-file", type=Path, required=True, metavar="FILE",
        help="file with a service account's token",
    )  # fmt: skip
    bring.add_argument(
        "--dry-run", action="store_true", help="show what would change, and change nothing"
    )
    bring.add_argument(
        "--folder",
        default="llmtrace",
        metavar="TITLE",
        help="title of the folder (default: llmtrace)",
    )
    bring.add_argument(
        "--folder-uid",
        default="llmtrace",
        metavar="UID",
        help="uid of the folder (default: llmtrace)",
    )
    bring.add_argument(
        "--datasource-url", metavar="URL", help="address of a Prometheus to add as a data source"
    )
    bring.add_argument(
        "--datasource-uid", metavar="UID",
        help="uid of that data source, or of an existing one that alerts are to query",
    )  # fmt: skip
    bring.add_argument(
        "--scrape", default="15s", metavar="TIME",
        help="scrape interval of that Prometheus (default: 15s)",
    )  # fmt: skip
    bring.add_argument(
        "--trace-url", metavar="URL",
        help="address of a trace, with ${__value.raw} for its id: exemplars link to it",
    )  # fmt: skip
    bring.add_argument(
        "--alerts", action="store_true", help="add the budget's alerts as Grafana-managed ones"
    )
    add_budget_option(bring)
    bring.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="certificates to trust, as PEM"
    )
    add_timeout(bring)
    _add_runbooks(bring)


def _add_export(kinds: Commands) -> None:
    save = add_command(
        kinds,
        "export",
        _dashboards,
        "write them to files: for provisioning, or for Kubernetes",
        "Write the dashboards to a folder: as they are, as a provisioning folder, or as "
        "ConfigMaps for the sidecar of Grafana's Helm chart.",
        examples=(
            "llmtrace dashboards export --out dashboards",
            "llmtrace dashboards export --out manifests --format configmap --namespace monitoring",
        ),
        docs=_DOCS,
    )
    save.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    save.add_argument(
        "--format", choices=("files", "provisioning", "configmap"), default="files",
        help="kind of files (default: files)",
    )  # fmt: skip
    save.add_argument(
        "--namespace", default="monitoring", metavar="NAME",
        help="namespace of the ConfigMaps (default: monitoring)",
    )  # fmt: skip
    _add_runbooks(save)


def _add_runbooks(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--runbooks", metavar="URL", help="address of docs/runbooks, which causes link to"
    )


def _dashboards(options: argparse.Namespace) -> None:
    commands = dashboards_module("command", "llmtrace dashboards")
    if options.what == "lint":
        commands.check(
            options.file,
            sys.stdout,
            exclude=options.exclude,
            optional=options.all,
            strict=options.strict,
            as_json=options.json,
        )
    elif options.what == "export":
        commands.save(
            options.out,
            sys.stdout,
            form=options.format,
            namespace=options.namespace,
            runbooks=options.runbooks,
        )
    else:
        commands.bring(
            options.url,
            options.token_file,
            sys.stdout,
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
        )
