"""Declare `llmtrace triage`, `llmtrace triage serve` and `llmtrace triage runbook`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from llmtrace.cli.arguments import (
    COLLECTOR_URL,
    Commands,
    add_command,
    add_json,
    expect_new_folder,
)
from llmtrace.cli.extras import collector_module
from llmtrace.core.errors import ConfigError, needs_extra

# Options that each name a source of the case; `--url` is the default.
_SOURCES: Final = ("case", "url", "store", "rows", "langfuse")
_LINKS: Final = ("runbooks", "trace_url")
_BOOTSTRAP: Final = 100
# Options of one triage, which `serve` has no use for, and what they are if they are not given.
_OF_ONE: Final[Mapping[str, object]] = {
    **dict.fromkeys(("last", "at", "before", "after", "metric", "html", "save")),
    "where": [], "explain": False, "json": False, "bootstrap": _BOOTSTRAP,
}  # fmt: skip


def add_triage(commands: Commands) -> None:
    """Declare `llmtrace triage`, and its commands `serve` and `runbook`."""
    triage = add_command(
        commands,
        "triage",
        _triage,
        "explain why a p95 moved: the stage, the cause, who is affected, what to do",
        "Explain why a p95 moved: which stage, whether the workload changed or the same work "
        "takes longer, which requests are affected, the likely cause and what to do now. Without "
        "intervals it finds the incident itself. Exit status: 0 = nothing moved, 10 = something "
        "did, 11 = the data cannot show it.",
        examples=(
            "llmtrace triage --last 1h",
            "llmtrace triage --at 14:30 --metric ttft --where route=chat",
            "llmtrace triage --case incident --html triage.html",
            "llmtrace triage --prometheus http://127.0.0.1:9090 --last 2h",
            "llmtrace triage --last 1h --json; [ $? -eq 10 ] && echo 'a metric moved'",
        ),
        docs="on-call/triage.md",
    )
    triage.set_defaults(
        **dict.fromkeys((*_SOURCES, *_LINKS, "token_file", "prometheus", "prometheus_token_file"))
    )
    _add_sources(triage)
    _add_question(triage)
    _add_output(triage)
    more = triage.add_subparsers(dest="what", metavar="[serve | runbook]")
    _add_serve(more)
    runbook = add_command(
        more,
        "runbook",
        _runbook,
        "print the runbook of a cause: how to confirm it, what to do now, and what later",
        examples=("llmtrace triage runbook kv_exhaustion",),
        docs="on-call/runbooks/index.md",
    )
    runbook.add_argument("cause", metavar="CAUSE", help="name of the cause, such as kv_exhaustion")


def _add_question(triage: argparse.ArgumentParser) -> None:
    triage.add_argument(
        "--last",
        metavar="TIME",
        help="length of the search, up to now (default: 6h); of --case and --rows all is searched",
    )
    triage.add_argument(
        "--at", metavar="TIME",
        help="time inside the incident: 14:30, the latest that the rows can have, or "
        "2026-01-31T14:30, both in this machine's zone; 2026-01-31T14:30Z is UTC; or 30m, before "
        "now or the end of the --case or --rows",
    )  # fmt: skip
    triage.add_argument("--before", metavar="A/B", help="interval to compare with, of such times")
    triage.add_argument("--after", metavar="A/B", help="interval of the incident")
    triage.add_argument(
        "--metric", choices=("ttft", "tpot", "e2e", "render"),
        help="metric to explain (default: the one that moved)",
    )  # fmt: skip
    triage.add_argument(
        "--where", action="append", default=[], metavar="NAME=VALUE",
        help="only requests with this model, route, tenant, ...; of --prometheus alone, only "
             "series with this label, as cluster=eu-1; may be repeated",
    )  # fmt: skip


def _add_output(triage: argparse.ArgumentParser) -> None:
    triage.add_argument(
        "--explain", action="store_true", help="show every line of evidence, and all metrics"
    )
    add_json(triage, "text (its schema: docs/on-call/triage.md)")
    triage.add_argument("--html", type=Path, metavar="FILE", help="web page with charts to write")
    triage.add_argument("--save", type=Path, metavar="DIR", help="new folder for the case")
    triage.add_argument(
        "--bootstrap", type=int, default=_BOOTSTRAP, metavar="N",
        help="number of resamples for the intervals; 0 = none (default: %(default)s)",
    )  # fmt: skip


def _add_serve(commands: Commands) -> None:
    serving = add_command(
        commands,
        "serve",
        _triage,
        "triage alerts as they come in from an Alertmanager",
        "Receive alerts from an Alertmanager's webhook, triage each with the data of the "
        "collector at --url or of another source, store the report, and notify a chat and "
        "Grafana.",
        examples=(
            "llmtrace triage serve --url http://127.0.0.1:4319",
            "llmtrace triage serve --webhook-file webhook --public-url https://triage.example.org",
            "llmtrace triage serve --case incident",
        ),
        docs="on-call/on-call.md",
    )
    _add_sources(serving)
    serving.add_argument(
        "--listen", default="127.0.0.1:4321", metavar="ADDRESS",
        help="address that receives alerts (default: 127.0.0.1:4321)",
    )  # fmt: skip
    serving.add_argument(
        "--listen-token-file", type=Path, metavar="FILE",
        help="file with the token that clients have to send",
    )  # fmt: skip
    serving.add_argument(
        "--reports", type=Path, default=Path("triage-reports"), metavar="DIR",
        help="folder of the reports (default: triage-reports)",
    )  # fmt: skip
    serving.add_argument(
        "--public-url", metavar="URL", help="address of this server in links that people follow"
    )
    serving.add_argument(
        "--webhook-file", type=Path, metavar="FILE",
        help="file with the address of a chat's incoming webhook (or in the environment: "
        "LLMTRACE_TRIAGE_WEBHOOK)",
    )  # fmt: skip
    serving.add_argument("--grafana", metavar="URL", help="address of a Grafana to annotate")
    serving.add_argument(
        "--grafana-token-file", type=Path, metavar="FILE",
        help="file with the token of a service account that may annotate",
    )  # fmt: skip
    serving.add_argument(
        "--grafana-ca-file", type=Path, metavar="FILE", help="certificates to trust there, as PEM"
    )


def _add_sources(command: argparse.ArgumentParser) -> None:
    """Add the options of sources; before and after `serve` they are the same.

    None has a default here: that of `serve` would replace what was given before it.
    """

    def add(group: Any, name: str, **settings: Any) -> None:
        group.add_argument(name, default=argparse.SUPPRESS, **settings)

    source = command.add_mutually_exclusive_group()
    add(source, "--case", type=Path, metavar="DIR", help="folder of a case")
    add(source, "--url", metavar="URL", help=f"collector's address (default: {COLLECTOR_URL})")
    add(
        source, "--store", metavar="URL",
        help="store of a collector, read directly: http(s)://[user@]host:port/database of a "
        "ClickHouse, whose password is in CLICKHOUSE_PASSWORD, or the folder of a stopped one",
    )  # fmt: skip
    add(
        source, "--rows", type=Path, action="append", metavar="FILE",
        help="file or folder of rows: JSON lines, CSV (-: stdin) or Parquet; may be repeated",
    )  # fmt: skip
    add(
        source, "--langfuse", action="store_true",
        help="the Langfuse project that the variables LANGFUSE_* name",
    )  # fmt: skip
    add(command, "--token-file", type=Path, metavar="FILE", help="file with the collector's token")
    add(
        command, "--prometheus", metavar="URL",
        help="address of a Prometheus to read signals from, instead of the source; alone: triage "
        "what engines count themselves, without rows",
    )  # fmt: skip
    add(
        command, "--prometheus-token-file", type=Path, metavar="FILE",
        help="file with its token, or with `Basic ` and the base64 of user:password",
    )  # fmt: skip
    add(
        command, "--trace-url", metavar="TEMPLATE",
        help="address of a trace, with {trace_id} in it (default: the collector's page of it)",
    )  # fmt: skip
    add(
        command, "--runbooks", metavar="BASE",
        help="address of your runbooks: BASE/CAUSE.md, or {cause} where the cause's name belongs",
    )  # fmt: skip


def _runbook(options: argparse.Namespace) -> None:
    with needs_extra("llmtrace triage", "triage"):
        from llmtrace.triage.command import print_runbook
    print_runbook(options.cause)


def _triage(options: argparse.Namespace) -> int:
    given = [f"--{name}" for name in _SOURCES if getattr(options, name)]
    if len(given) > 1:  # argparse checks either side of `serve` alone
        raise ConfigError(f"{' and '.join(given)} exclude each other: give one source")
    if options.what == "serve":
        unused = [name for name, default in _OF_ONE.items() if getattr(options, name) != default]
        if unused:
            raise ConfigError(f"--{unused[0]} is of one triage: not with serve")
    elif options.last is not None and (options.case or options.rows):
        raise ConfigError(
            "--last is up to now: not with --case or --rows, which are searched as a whole; "
            "--at, or --before and --after, say where"
        )
    expect_new_folder("--save", options.save)
    if options.html is not None and not options.html.parent.is_dir():
        raise ConfigError(f"--html {options.html}: there is no folder {options.html.parent}")
    with needs_extra("llmtrace triage", "triage"):
        from llmtrace.triage import command
    from llmtrace.triage.sources import reader

    if options.prometheus and not given and options.what != "serve":
        from llmtrace.triage.without_rows import command as engines

        return engines.main(
            options, collector_module("scrape.from_prometheus", "llmtrace triage --prometheus")
        )
    options.url = options.url or COLLECTOR_URL

    read = reader(options, collector_module)
    if options.what == "serve":
        from llmtrace.triage.oncall import command as serving

        serving.serve(options, read)
        return 0
    return command.main(options, read)
