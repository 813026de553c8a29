"""How are dashboards imported, written to files, or checked?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_command, positive
from llmtrace.cli.extras import dashboards_module


def add_dashboards(commands: Commands) -> None:
    """Declare the commands of `llmtrace dashboards`."""
    dashboards = add_command(
        commands,
        "dashboards",
        _dashboards,
        "import llmtrace's Grafana dashboards, write them to files, or check anybody's",
        "Import llmtrace's dashboards into a Grafana, write them to files, or check anybody's.",
    )
    kinds = dashboards.add_subparsers(dest="what", metavar="WHAT", required=True)
    lint = kinds.add_parser(
        "lint",
        help="check dashboards: data sources, units, queries, what Grafana would ignore",
        description="Check dashboards, anybody's, as files: data sources, descriptions, units, "
        "queries, and what Grafana would ignore in silence. Exit status 1 = something is wrong.",
    )
    lint.add_argument("file", type=Path, nargs="+", metavar="FILE", help="a dashboard's JSON")
    lint.add_argument(
        "--exclude", action="append", default=[], metavar="RULE",
        help="leave a rule out; may be given again",
    )  # fmt: skip
    lint.add_argument(
        "--all", action="store_true", help="ask for variables `job` and `instance` too"
    )
    lint.add_argument("--strict", action="store_true", help="warnings are errors")
    lint.add_argument("--json", action="store_true", help="print JSON instead of lines")
    bring = kinds.add_parser(
        "import",
        help="put them into a Grafana; a second time changes nothing",
        description="Put the dashboards into a Grafana through its API: folder, dashboards and, "
        "if asked for, a data source and alert rules. Run again it changes what has changed, and "
        "nothing else.",
    )
    bring.add_argument("--url", required=True, metavar="URL", help="of the Grafana's start page")
    bring.add_argument(
        "--token-file", type=Path, required=True, metavar="FILE",
        help="a file with a service account's token",
    )  # fmt: skip
    bring.add_argument(
        "--dry-run", action="store_true", help="show what would change, and change nothing"
    )
    bring.add_argument("--folder", default="llmtrace", metavar="TITLE", help="default: llmtrace")
    bring.add_argument("--folder-uid", default="llmtrace", metavar="UID", help="default: llmtrace")
    bring.add_argument(
        "--datasource-url", metavar="URL", help="make a data source of the Prometheus there"
    )
    bring.add_argument(
        "--datasource-uid", metavar="UID",
        help="uid of that data source, or of one that is there and alerts shall ask",
    )  # fmt: skip
    bring.add_argument(
        "--scrape", default="15s", metavar="TIME",
        help="how often that Prometheus scrapes (default: 15s)",
    )  # fmt: skip
    bring.add_argument(
        "--trace-url", metavar="URL",
        help="where traces are, with ${__value.raw} for the id: exemplars lead there",
    )  # fmt: skip
    bring.add_argument(
        "--alerts", action="store_true", help="make the budget's alerts Grafana-managed ones"
    )
    bring.add_argument(
        "--budget", type=Path, metavar="FILE",
        help="the budget of the alerts (default: targets people set for a dialogue)",
    )  # fmt: skip
    bring.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="certificates to trust, as PEM"
    )
    bring.add_argument(
        "--timeout", type=positive(float), default=10.0, metavar="S",
        help="wait so long for each answer (default: 10)",
    )  # fmt: skip
    save = kinds.add_parser(
        "export",
        help="write them to files: for provisioning, or for Kubernetes",
        description="Write the dashboards to a folder: as they are, as a provisioning folder, or "
        "as ConfigMaps for the sidecar of Grafana's Helm chart.",
    )
    save.add_argument("--to", type=Path, required=True, metavar="DIR", help="where to write")
    save.add_argument(
        "--form", choices=("files", "provisioning", "configmap"), default="files",
        help="default: files",
    )  # fmt: skip
    save.add_argument(
        "--namespace", default="monitoring", metavar="NAME",
        help="of the ConfigMaps (default: monitoring)",
    )  # fmt: skip
    for one in (bring, save):
        one.add_argument(
            "--runbooks", metavar="URL", help="where docs/runbooks is served: causes link there"
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
            options.to,
            sys.stdout,
            form=options.form,
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
