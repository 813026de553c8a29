"""How is the collector started, looked at, and what it would read checked?"""

from __future__ import annotations

import argparse
from pathlib import Path

from llmtrace.cli.arguments import Commands, absolute_path, add_command, positive
from llmtrace.cli.extras import collector_module


def add_doctor(commands: Commands) -> None:
    """Declare `llmtrace doctor`."""
    doctor = add_command(
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
        "--timeout", type=positive(float), default=10.0, metavar="S",
        help="wait so long for each answer (default: 10)",
    )  # fmt: skip
    doctor.add_argument(
        "--profiles", type=Path, metavar="DIR", help="a folder with profiles of your own"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _doctor(options: argparse.Namespace) -> None:
    collector_module("commands.doctor", "llmtrace doctor").run(
        options.url,
        token_file=options.token_file,
        timeout_s=options.timeout,
        ask=options.ask,
        profiles=options.profiles,
        as_json=options.json,
    )


def add_collect(commands: Commands) -> None:
    """Declare `llmtrace collect`."""
    collect = add_command(
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
    collect.add_argument("--data", type=absolute_path, metavar="DIR", help="where data are kept")
    collect.add_argument(
        "--target", action="append", metavar="URL",
        help="a metrics page to read, as http://engine:8000/metrics; may be given again",
    )  # fmt: skip
    collect.add_argument("--budget", type=absolute_path, metavar="FILE", help="latency budget")
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


def _collect(options: argparse.Namespace) -> None:
    flags = {
        ("data",): options.data,
        ("budget",): options.budget,
        ("scrape", "targets"): options.target,
        ("listen", "web"): options.web,
        ("listen", "otlp_http"): options.otlp_http,
        ("listen", "otlp_grpc"): options.otlp_grpc,
    }
    collector_module("commands.collect", "llmtrace collect").run(
        options.config, flags, check=options.check, print_config=options.print_config
    )


def add_quarantine(commands: Commands) -> None:
    """Declare `llmtrace quarantine`."""
    quarantine = add_command(
        commands,
        "quarantine",
        _quarantine,
        "list requests that a collector's store did not take, and replay them",
        "List the requests that a running collector took and its store did not: when, how large, "
        "and the store's reason. They are in the folder `spool/quarantine` of its data, each as "
        "an OTLP request in a file.",
    )
    quarantine.add_argument(
        "--url", default="http://127.0.0.1:4319", metavar="URL",
        help="of the collector (default: http://127.0.0.1:4319)",
    )  # fmt: skip
    quarantine.add_argument(
        "--token-file", type=Path, metavar="FILE", help="a file with the token it wants"
    )
    quarantine.add_argument(
        "--replay", action="store_true",
        help="have it store them now; what still cannot be stored comes back",
    )  # fmt: skip
    quarantine.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _quarantine(options: argparse.Namespace) -> None:
    collector_module("commands.quarantined", "llmtrace quarantine").run(
        options.url, token_file=options.token_file, replay=options.replay, as_json=options.json
    )


def add_top(commands: Commands) -> None:
    """Declare `llmtrace top`."""
    top = add_command(
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
        "--every", type=positive(float), default=2.0, metavar="S",
        help="look again after so long (default: 2)",
    )  # fmt: skip
    top.add_argument("--once", action="store_true", help="print once, and end")


def _top(options: argparse.Namespace) -> None:
    collector_module("commands.top", "llmtrace top").run(
        options.url, token_file=options.token_file, interval_s=options.every, once=options.once
    )
