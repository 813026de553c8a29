"""Run `llmtrace dashboards`: import them into Grafana, export them, check what they show."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from llmtrace.cli.extras import collector_module, dashboards_module
from llmtrace.cli.slo import write_engine_rules
from llmtrace.core.errors import ConfigError


def run_dashboards(options: argparse.Namespace) -> None:
    """Run `llmtrace dashboards` as its options say."""
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
        commands.save(
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
    commands.bring(
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
    """Write the rules that unify engines' metrics, and have Prometheus load them."""
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
