"""How is a triage asked for, once or for each alert that comes in?"""

from __future__ import annotations

import argparse
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_command
from llmtrace.cli.extras import collector_module
from llmtrace.errors import missing_extra


def add_triage(commands: Commands) -> None:
    """Declare `llmtrace triage` and `llmtrace triage serve`."""
    triage = add_command(
        commands,
        "triage",
        _triage,
        "say why a p95 moved: which stage, workload or system, who, the cause, what to do",
        "Say why a p95 moved: which stage, whether people asked for something else or the same "
        "work takes longer, who is hit, the likely cause and what to do now. Without windows it "
        "finds the spike itself. Exit status: 0 = nothing moved, 10 = something did, 11 = the "
        "data cannot tell.",
    )
    source = triage.add_mutually_exclusive_group()
    source.add_argument("--case", type=Path, metavar="DIR", help="read an incident from a folder")
    source.add_argument(
        "--url", default="http://127.0.0.1:4319", metavar="URL",
        help="ask the collector there (default: http://127.0.0.1:4319)",
    )  # fmt: skip
    source.add_argument(
        "--store", metavar="URL",
        help="read its store without it: http(s)://[user@]host:port/database of a ClickHouse, "
        "whose password is in CLICKHOUSE_PASSWORD, or the folder of one that does not run",
    )  # fmt: skip
    source.add_argument(
        "--rows", type=Path, metavar="FILE", help="read rows: JSON, one a line, or Parquet"
    )
    source.add_argument(
        "--langfuse", action="store_true",
        help="read the Langfuse project that the variables LANGFUSE_* name",
    )  # fmt: skip
    triage.add_argument(
        "--token-file", type=Path, metavar="FILE", help="a file with the token the collector wants"
    )
    triage.add_argument(
        "--prometheus", metavar="URL",
        help="ask the Prometheus there for signals, in place of the source's own",
    )  # fmt: skip
    triage.add_argument(
        "--prometheus-token-file", type=Path, metavar="FILE", help="a file with its token"
    )
    triage.add_argument(
        "--last", default="6h", metavar="TIME", help="how long back to look (default: 6h)"
    )
    triage.add_argument("--at", metavar="TIME", help="a time inside the incident")
    triage.add_argument("--before", metavar="A/B", help="compare with this window")
    triage.add_argument("--after", metavar="A/B", help="the window of the incident")
    triage.add_argument(
        "--metric", choices=("ttft", "tpot", "e2e", "render"), help="default: whichever moved"
    )
    triage.add_argument(
        "--where", action="append", default=[], metavar="NAME=VALUE",
        help="only rows with this model, route, tenant, ...; may be given again",
    )  # fmt: skip
    triage.add_argument(
        "--explain", action="store_true", help="show every line of evidence, and all metrics"
    )
    triage.add_argument("--json", action="store_true", help="print JSON (docs/triage.md)")
    triage.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    triage.add_argument("--save", type=Path, metavar="DIR", help="write the case to a folder")
    triage.add_argument(
        "--bootstrap", type=int, default=200, metavar="N",
        help="resample so often for the intervals; 0 = none (default: 200)",
    )  # fmt: skip
    serving = triage.add_subparsers(dest="what", metavar="[serve]").add_parser(
        "serve",
        help="triage alerts as they come in from an Alertmanager",
        description="Take alerts from an Alertmanager's webhook, triage each with what the "
        "collector at --url (or another source) has, keep the report, and tell a chat and "
        "Grafana. Options of sources stand before `serve`.",
    )
    serving.add_argument(
        "--listen", default="127.0.0.1:4321", metavar="ADDRESS",
        help="where alerts come in (default: 127.0.0.1:4321)",
    )  # fmt: skip
    serving.add_argument(
        "--listen-token-file", type=Path, metavar="FILE",
        help="a file with the token that callers have to bear",
    )  # fmt: skip
    serving.add_argument(
        "--reports", type=Path, default=Path("triage-reports"), metavar="DIR",
        help="where reports are kept (default: triage-reports)",
    )  # fmt: skip
    serving.add_argument(
        "--public-url", metavar="URL", help="how people reach this server, for links"
    )
    serving.add_argument(
        "--webhook-file", type=Path, metavar="FILE",
        help="a file with the address of a chat's incoming webhook (or in the environment: "
        "LLMTRACE_TRIAGE_WEBHOOK)",
    )  # fmt: skip
    serving.add_argument("--grafana", metavar="URL", help="annotate there what was found")
    serving.add_argument(
        "--grafana-token-file", type=Path, metavar="FILE",
        help="a file with the token of a service account that may annotate",
    )  # fmt: skip
    serving.add_argument(
        "--grafana-ca-file", type=Path, metavar="FILE", help="certificates to trust there, as PEM"
    )


def _triage(options: argparse.Namespace) -> int:
    try:
        from llmtrace.triage import command
    except ImportError as error:
        raise missing_extra("llmtrace triage", "triage", error.name or "numpy") from error
    from llmtrace.triage.sources import reader

    read = reader(options, collector_module)
    if options.what == "serve":
        from llmtrace.triage.oncall import command as serving

        serving.serve(options, read)
        return 0
    return command.main(options, read)
