"""What does the `llmtrace` command take, and which function does each of its commands call?"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from llmtrace import __version__
from llmtrace.errors import ConfigError, LlmtraceError, missing_extra

INTERRUPTED: Final = 130
_WIDEST: Final = 120
_VERSION: Final = f"llmtrace {__version__}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 is success, 1 a failure, 2 a wrong option or setting, 130 an interrupt by Ctrl-C; `triage`
    says with 10 that something moved and with 11 that it cannot tell.

    Args:
        arguments: what follows `llmtrace`; default: the process's own.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if options.command is None:
        parser.print_help()
        return 2
    try:
        status: int | None = options.run(options)
        sys.stdout.flush()
    except LlmtraceError as error:
        print(f"llmtrace: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("llmtrace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; what is buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status or 0


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="llmtrace",
        description="Seven stages of a streaming LLM request that add up to what the user waited.",
    )
    parser.add_argument("-V", "--version", action="version", version=_VERSION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_demo(commands)
    _add_waterfall(commands)
    _add_rows(commands)
    _add_doctor(commands)
    _add_budget(commands)
    _add_slo(commands)
    _add_dashboards(commands)
    _add_collect(commands)
    _add_top(commands)
    _add_schema(commands)
    _add_migrate(commands)
    _add_triage(commands)
    _add_simulate(commands)
    _add(commands, "semconv", _semconv, "print the span attributes of a request, as Markdown")
    _add(commands, "version", _version, "print the version")
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    help_text: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=help_text, description=description or help_text)
    command.set_defaults(run=run)
    return command


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = _add(
        commands,
        "demo",
        _demo,
        "break an engine half-way, show where the time goes, and triage it",
        "Ask an engine as many users would, and show where the time of their requests went. "
        "Without options the engine is a simulated one, started on loopback with a collector of "
        "its own: no GPU, key or server is needed. Half-way something is made to go wrong, and "
        "triage says what.",
    )
    broken = demo.add_argument_group("what goes wrong, in the simulated engine")
    broken.add_argument(
        "--fault", metavar="NAME",
        help="half-way (default: gpu_throttle; nothing with --requests); none = nothing",
    )  # fmt: skip
    broken.add_argument(
        "--severity", type=_positive(float), default=3.0, metavar="S",
        help="from 1, hardly felt, to 3 (default: 3)",
    )  # fmt: skip
    broken.add_argument("--list", action="store_true", help="list the faults, and end")
    broken.add_argument("--html", type=Path, metavar="FILE", help="where the triage's page goes")
    whom = demo.add_argument_group("whom to ask")
    either = whom.add_mutually_exclusive_group()
    either.add_argument(
        "--endpoint", metavar="URL", help="an OpenAI-compatible server, as http://host:8000/v1"
    )
    either.add_argument(
        "--vllm", action="store_true", help="a real vLLM, started for this (`make vllm` once)"
    )
    whom.add_argument("--model", metavar="NAME", help="the model to ask the endpoint for")
    whom.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="environment variable that holds the endpoint's key; without it none is sent",
    )
    load = demo.add_argument_group("how much")
    load.add_argument(
        "--seconds",
        type=_positive(float),
        metavar="S",
        help="ask for so long (default: 110 with a fault, else 24)",
    )
    load.add_argument(
        "--requests", type=_positive(int), metavar="N", help="make at most N requests"
    )
    load.add_argument(
        "--concurrency",
        type=_positive(int),
        metavar="N",
        help="users asking at once: with a fault always (default: 5), else in the rush, and a "
        "quarter of them before it (default: 12)",
    )
    shown = demo.add_argument_group("what is shown")
    shown.add_argument(
        "--budget", type=Path, metavar="FILE", help="latency budget to hold the stages against"
    )
    shown.add_argument(
        "--json", type=Path, metavar="FILE", help="write each request's row there, one a line"
    )


def _add_waterfall(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    waterfall = _add(
        commands,
        "waterfall",
        _waterfall,
        "draw where the time of one request went",
        "Draw where the time of one request went, from rows `llmtrace demo --json` wrote.",
    )
    waterfall.add_argument("file", type=Path, metavar="FILE", help="rows, one JSON object a line")
    which = waterfall.add_mutually_exclusive_group()
    which.add_argument(
        "--slowest", action="store_true", help="the one that took longest (the default)"
    )
    which.add_argument(
        "--request", metavar="ID", help="the one with this request, response or trace id"
    )


def _add_rows(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    rows = _add(
        commands,
        "rows",
        _rows,
        "print the requests that another tool has recorded, as rows",
        "Print the requests that another tool has recorded, as rows: one JSON object a line, as "
        "`llmtrace waterfall` reads them. Langfuse's project is the one that LANGFUSE_PUBLIC_KEY, "
        "LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL name.",
    )
    rows.add_argument("source", choices=("langfuse",), help="where they are")
    rows.add_argument(
        "--from", dest="start", type=_time, metavar="TIME",
        help="requests from then on, as 2026-11-21T14:00 (default: an hour before --to)",
    )  # fmt: skip
    rows.add_argument(
        "--to", dest="end", type=_time, metavar="TIME", help="and before then (default: now)"
    )
    rows.add_argument("--environment", metavar="NAME", help="only of this environment")
    rows.add_argument(
        "--most", type=_positive(int), default=10_000, metavar="N",
        help="read no more than about N observations (default: 10000)",
    )  # fmt: skip


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = _add(
        commands,
        "doctor",
        _doctor,
        "check what an engine or gateway reports, and which settings it lacks",
        "Check an engine, gateway or GPU exporter from outside: which it is, what it reports and "
        "what not, and which settings would mend that. Exit status 1 = it cannot be read, or "
        "lacks a signal it should report.",
    )
    doctor.add_argument("url", metavar="URL", help="its address, as http://host:8000")
    doctor.add_argument(
        "--ask", action="store_true",
        help="have it generate one token, to see what its answers carry",
    )  # fmt: skip
    doctor.add_argument(
        "--token-file", type=Path, metavar="FILE", help="a file with the token it wants"
    )
    doctor.add_argument(
        "--timeout", type=_positive(float), default=10.0, metavar="S",
        help="wait so long for each answer (default: 10)",
    )  # fmt: skip
    doctor.add_argument(
        "--profiles", type=Path, metavar="DIR", help="a folder with profiles of your own"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_collect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    collect = _add(
        commands,
        "collect",
        _collect,
        "receive spans, read engines, keep and serve every request's row",
        "Receive spans by OTLP, read the metrics pages of engines and this machine's GPUs, join "
        "and keep one row a request, and serve it all: a live page, /metrics and an API. Without "
        "options on loopback, with the data in a folder of this user's. SIGTERM or Ctrl-C ends it "
        "in order, a second one at once; nothing it acknowledged is lost either way.",
    )
    collect.add_argument("--config", type=Path, metavar="FILE", help="settings, as YAML")
    collect.add_argument("--data", type=_absolute, metavar="DIR", help="where data are kept")
    collect.add_argument(
        "--target", action="append", metavar="URL",
        help="a metrics page to read, as http://engine:8000/metrics; may be given again",
    )  # fmt: skip
    collect.add_argument("--budget", type=_absolute, metavar="FILE", help="latency budget")
    for name, words in (
        ("web", "the live page, /metrics and the API"),
        ("otlp-http", "OTLP over HTTP"),
        ("otlp-grpc", "OTLP over gRPC"),
    ):
        collect.add_argument(
            f"--{name}", metavar="ADDRESS", help=f"where {words} listen: host:port, port, or off"
        )
    instead = collect.add_mutually_exclusive_group()
    instead.add_argument(
        "--check", action="store_true", help="check the settings, and do nothing else"
    )
    instead.add_argument(
        "--print-config", action="store_true", help="print what holds, without secrets"
    )


def _add_top(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    top = _add(
        commands,
        "top",
        _top,
        "show stages, budget and engines as they are now",
        "Show a running collector on the terminal: each stage's p95 against the budget, the "
        "engines, how requests ended, the slowest of them. Ctrl-C ends it.",
    )
    top.add_argument(
        "--url", default="http://127.0.0.1:4319", metavar="URL",
        help="of the collector (default: http://127.0.0.1:4319)",
    )  # fmt: skip
    top.add_argument(
        "--token-file", type=Path, metavar="FILE", help="a file with the token it wants"
    )
    top.add_argument(
        "--every", type=_positive(float), default=2.0, metavar="S",
        help="look again after so long (default: 2)",
    )  # fmt: skip
    top.add_argument("--once", action="store_true", help="print once, and end")


def _add_schema(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    schema = _add(
        commands,
        "schema",
        _schema,
        "print the tables and views for a ClickHouse of your own",
        "Print the statements that make the collector's tables, and the view that joins requests, "
        "for a ClickHouse that an OpenTelemetry Collector writes to: no llmtrace process is "
        "needed then.",
    )
    schema.add_argument("engine", choices=("clickhouse",), help="what it is for")
    schema.add_argument(
        "--database", default="llmtrace", metavar="NAME", help="where to (default: llmtrace)"
    )
    schema.add_argument(
        "--cluster", metavar="NAME", help="replicated and distributed over this cluster"
    )


def _add_migrate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    migrate = _add(
        commands,
        "migrate",
        _migrate,
        "copy everything from one store to another",
        "Copy spans, rows, signals, events and facts from one store to another, and count both "
        "sides. Started again after an interruption it stores nothing twice. Stop the collector "
        "of the store that is read. A store is a folder, chdb:///path, or "
        "http(s)://[user@]host:port/database, whose password is in CLICKHOUSE_PASSWORD or in "
        "the file that CLICKHOUSE_PASSWORD_FILE names.",
    )
    migrate.add_argument("--from", dest="source", required=True, metavar="STORE", help="read")
    migrate.add_argument(
        "--to", dest="destination", required=True, metavar="STORE", help="written"
    )


def _add_triage(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    triage = _add(
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


def _absolute(text: str) -> str:
    return str(Path(text).expanduser().absolute())


def _add_budget(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    budget = _add(
        commands,
        "budget",
        _budget,
        "check a latency budget, suggest one, or hold requests against it",
        "Check whether a latency budget adds up, suggest one from measured requests, or hold "
        "requests against it.",
    )
    kinds = budget.add_subparsers(dest="what", metavar="WHAT", required=True)
    check = kinds.add_parser(
        "check",
        help="add a budget file up, and say what would fit where it does not",
        description="Add a budget file up, and say what would fit where it does not. Exit status "
        "1 = it contradicts itself.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="a budget, as YAML or JSON")
    suggest = kinds.add_parser(
        "suggest",
        help="deal a total out among the stages, from measured rows",
        description="Deal a total out among the stages, from measured rows: what a request at "
        "the objective spends in each. Unlike the stages' own percentiles that adds up.",
    )
    suggest.add_argument("file", type=Path, metavar="ROWS", help="rows, one JSON object a line")
    suggest.add_argument(
        "--total", metavar="TIME", help="to deal out, as 2.5s (default: what it takes now)"
    )
    suggest.add_argument("--objective", metavar="Q", help="the quantile it is for (default: p95)")
    suggest.add_argument(
        "--buffer", metavar="SHARE", help="kept free of the total, as 10%% (default: nothing)"
    )
    suggest.add_argument("--name", metavar="NAME", help="of the budget")
    suggest.add_argument("--model", metavar="NAME", help="only rows of this model, or llama-*")
    suggest.add_argument("--route", metavar="NAME", help="only rows of this route, or v1/*")
    suggest.add_argument("--out", type=Path, metavar="FILE", help="write the budget file there")
    report = kinds.add_parser(
        "report",
        help="hold measured rows against a budget: which stage eats it",
        description="Hold measured rows against a budget: which stage eats it, how much of it, "
        "and how sure that is.",
    )
    report.add_argument("file", type=Path, metavar="ROWS", help="rows, one JSON object a line")
    report.add_argument(
        "--budget", type=Path, metavar="FILE",
        help="a budget file (default: targets people set for a dialogue)",
    )  # fmt: skip
    report.add_argument("--html", type=Path, metavar="FILE", help="draw it there, too")


def _add_slo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    slo = _add(
        commands,
        "slo",
        _slo,
        "make recording rules, alerts and SLO files from a budget",
        "Make what alerting needs from a budget file: Prometheus's recording rules and alerts, "
        "or the files of Sloth or OpenSLO. docs/alerts.md says what each alert means.",
    )
    slo.add_argument(
        "what", choices=("rules", "sloth", "openslo"),
        help="Prometheus's own rules, or the files of a tool you have",
    )  # fmt: skip
    slo.add_argument(
        "--budget", type=Path, metavar="FILE",
        help="a budget file (default: targets people set for a dialogue)",
    )  # fmt: skip
    slo.add_argument(
        "--out", type=Path, metavar="DIR", help="write files there, instead of printing them"
    )
    slo.add_argument("--grafana", metavar="URL", help="where alerts link their dashboards to")
    slo.add_argument("--runbooks", metavar="URL", help="where your copy of docs/alerts.md is")
    slo.add_argument(
        "--collector", metavar="URL", help="the collector that `llmtrace triage` is to ask"
    )
    slo.add_argument(
        "--collector-job", metavar="JOB",
        help="what Prometheus scrapes the collector as (default: llmtrace-collector)",
    )  # fmt: skip


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    simulate = _add(
        commands,
        "simulate",
        _simulate,
        "simulate a fleet of engines on a bad day, and write what was seen as a case folder",
        "Simulate half an hour of a fleet of engines and ten minutes of an incident, and write "
        "rows, signals and facts as a case folder. truth.json in it says what was done. Without "
        "--fault and --shift nothing happens that day.",
    )
    what = simulate.add_argument_group("what happens")
    what.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="a cause; may be repeated"
    )
    what.add_argument(
        "--severity", type=_positive(float), default=2.0, metavar="S",
        help="from 1, hardly felt, to 3 (default: 2)",
    )  # fmt: skip
    what.add_argument("--shift", metavar="NAME", help="people ask differently; nothing is broken")
    what.add_argument("--list", action="store_true", help="list faults and shifts, and stop")
    simulate.add_argument(
        "--seed", type=int, default=1, metavar="N", help="another one, another day (default: 1)"
    )
    simulate.add_argument(
        "--drop", action="append", default=[], metavar="SIGNAL",
        help="a signal nobody scraped; * = all of them",
    )  # fmt: skip
    simulate.add_argument("--out", type=Path, metavar="DIR", help="the folder to write")


def _add_dashboards(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    dashboards = _add(
        commands,
        "dashboards",
        _dashboards_command,
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
        "--timeout", type=_positive(float), default=10.0, metavar="S",
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


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        msg = f"{text!r} is not a time such as 2026-11-21T14:00 or 2026-11-21T14:00+01:00"
        raise argparse.ArgumentTypeError(msg) from error


def _positive(kind: type[int | float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            whole = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {whole} above 0")
        return number

    return read


def _demo(options: argparse.Namespace) -> None:
    from llmtrace.demo import trouble
    from llmtrace.demo.options import DemoOptions
    from llmtrace.demo.run import run

    if options.list:
        room = max(map(len, trouble.FAULTS))
        for name, about in sorted(trouble.FAULTS.items()):
            print(f"{name:<{room}}  {about}")
        return
    elsewhere = options.vllm or options.endpoint is not None or options.requests is not None
    fault = options.fault or (trouble.NONE if elsewhere else trouble.DEFAULT)
    run(
        DemoOptions(
            endpoint=options.endpoint,
            model=options.model,
            api_key_env=options.api_key_env,
            vllm=options.vllm,
            budget=options.budget,
            json=options.json,
            seconds=options.seconds,
            requests=options.requests,
            users=options.concurrency,
            fault=None if fault == trouble.NONE else fault,
            severity=options.severity,
            html=options.html,
        )
    )


def _waterfall(options: argparse.Namespace) -> None:
    from llmtrace.redraw import redraw

    width = min(shutil.get_terminal_size().columns, _WIDEST)
    print(redraw(options.file, options.request, width))


def _rows(options: argparse.Namespace) -> None:
    from llmtrace.jsonl import write_rows
    from llmtrace.langfuse_rows import read_rows

    end = options.end or datetime.now().astimezone()
    start = options.start or end - timedelta(hours=1)
    if start >= end:
        raise ConfigError("--from is not before --to")
    found = read_rows(start, end, environment=options.environment, most=options.most)
    write_rows(sys.stdout, found.rows)
    said = [_count(len(found.rows), "row")]
    if found.skipped:
        left_out = _count(found.skipped, "observation")
        said.append(f"{left_out} left out: not over, or not a request")
    if found.more:
        said.append("there may be more: raise --most, or take a shorter time")
    print("; ".join(said), file=sys.stderr)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _simulate(options: argparse.Namespace) -> None:
    from llmtrace.sim.fleet.command import list_faults, write_day

    if options.list:
        list_faults(sys.stdout)
        return
    if options.out is None:
        raise ConfigError("--out DIR is missing: say where the case folder goes")
    faults = [(name, options.severity) for name in options.fault]
    write_day(options.out, faults, options.seed, shift=options.shift, drop=options.drop)


def _doctor(options: argparse.Namespace) -> None:
    _collector("doctor", "llmtrace doctor").run(
        options.url,
        token_file=options.token_file,
        timeout_s=options.timeout,
        ask=options.ask,
        profiles=options.profiles,
        as_json=options.json,
    )


def _schema(options: argparse.Namespace) -> None:
    printed = _collector("store.printed", "llmtrace schema")
    print(printed.schema(options.database, options.cluster), end="")


def _migrate(options: argparse.Namespace) -> None:
    _collector("store.migrate", "llmtrace migrate").run(options.source, options.destination)


def _collect(options: argparse.Namespace) -> None:
    flags = {
        ("data",): options.data,
        ("budget",): options.budget,
        ("scrape", "targets"): options.target,
        ("listen", "web"): options.web,
        ("listen", "otlp_http"): options.otlp_http,
        ("listen", "otlp_grpc"): options.otlp_grpc,
    }
    _collector("collect", "llmtrace collect").run(
        options.config, flags, check=options.check, print_config=options.print_config
    )


def _top(options: argparse.Namespace) -> None:
    _collector("top", "llmtrace top").run(
        options.url, token_file=options.token_file, interval_s=options.every, once=options.once
    )


def _triage(options: argparse.Namespace) -> int:
    try:
        from llmtrace.triage import command
    except ImportError as error:
        raise missing_extra("llmtrace triage", "triage", error.name or "numpy") from error
    from llmtrace.triage.sources import reader

    read = reader(options, _collector)
    if options.what == "serve":
        from llmtrace.triage.oncall import serving

        serving.serve(options, read)
        return 0
    return command.main(options, read)


def _budget(options: argparse.Namespace) -> None:
    from llmtrace import budget_command as commands

    if options.what == "check":
        commands.check(options.file, sys.stdout)
    elif options.what == "suggest":
        commands.suggest(
            options.file,
            sys.stdout,
            total=options.total,
            objective=options.objective,
            buffer=options.buffer,
            name=options.name,
            model=options.model,
            route=options.route,
            write=options.out,
        )
    else:
        commands.report(options.file, options.budget, options.html)


def _slo(options: argparse.Namespace) -> None:
    _dashboards("slo_command", "llmtrace slo").run(
        options.what,
        budget=options.budget,
        folder=options.out,
        grafana=options.grafana,
        runbooks=options.runbooks,
        collector=options.collector,
        collector_job=options.collector_job,
        out=sys.stdout,
    )


def _dashboards_command(options: argparse.Namespace) -> None:
    commands = _dashboards("command", "llmtrace dashboards")
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


def _collector(module: str, feature: str) -> Any:
    """Return a module of the collector, which is built on this package: known by name alone."""
    try:
        return import_module(f"llmtrace_collector.{module}")
    except ImportError as error:
        raise missing_extra(feature, "collector", error.name or "llmtrace_collector") from error


def _dashboards(module: str, feature: str) -> Any:
    """Return a module of the dashboards, which are built on this package: known by name alone."""
    try:
        return import_module(f"llmtrace_dashboards.{module}")
    except ImportError as error:
        raise missing_extra(feature, "dashboards", error.name or "llmtrace_dashboards") from error


def _semconv(options: argparse.Namespace) -> None:
    from llmtrace.semconv_page import page

    del options
    print(page(), end="")


def _version(options: argparse.Namespace) -> None:
    del options
    print(_VERSION)


if __name__ == "__main__":
    sys.exit(main())
