"""Declare the commands that run the collector, show it, and check what it would scrape."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from llmtrace.cli import arguments
from llmtrace.cli.extras import collector_module


def add_doctor(commands: arguments.Commands) -> None:
    """Declare `llmtrace doctor`."""
    doctor = arguments.add_command(
        commands,
        "doctor",
        _doctor,
        "check which signals an engine or gateway exposes, and which settings it lacks",
        "Check an engine, gateway or GPU exporter from outside: its kind, the signals it exposes "
        "and lacks, and the settings that would fix that. Exit status 1 = it cannot be read, or "
        "lacks a signal it should expose.",
        examples=(
            "llmtrace doctor http://127.0.0.1:8000",
            "llmtrace doctor http://127.0.0.1:8000 --ask --json",
        ),
        docs="operate/engines.md",
    )
    doctor.add_argument("url", metavar="URL", help="address to check, as http://host:8000")
    doctor.add_argument(
        "--ask", action="store_true",
        help="send a request for one token, and check the response",
    )  # fmt: skip
    arguments.add_token_file(doctor)
    arguments.add_timeout(doctor)
    doctor.add_argument(
        "--profiles", type=Path, metavar="DIR", help="folder with profiles of your own"
    )
    arguments.add_json(doctor, "a table")


def _doctor(options: argparse.Namespace) -> None:
    collector_module("commands.doctor", "llmtrace doctor").run(
        options.url,
        token_file=options.token_file,
        timeout_s=options.timeout,
        ask=options.ask,
        profiles=options.profiles,
        as_json=options.json,
    )


def add_collect(commands: arguments.Commands) -> None:
    """Declare `llmtrace collect`."""
    collect = arguments.add_command(
        commands,
        "collect",
        _collect,
        "receive spans, scrape engines, store and serve the row of every request",
        "Receive spans over OTLP, scrape metrics of engines and of this machine's GPUs, join "
        "and store one row per request, and serve all of it: a live page, /metrics and an API. "
        "Without options it listens on localhost and stores in a folder of the user. SIGTERM "
        "or Ctrl-C starts a graceful shutdown, a second one stops at once; no acknowledged data "
        "is lost either way.",
        examples=(
            "llmtrace collect",
            "llmtrace collect --target http://engine:8000/metrics --budget budget.yaml",
            "llmtrace collect --config collector.yaml --check",
        ),
        docs="operate/collector.md",
    )
    collect.add_argument("--config", type=Path, metavar="FILE", help="settings, as YAML")
    collect.add_argument(
        "--data-dir", type=arguments.absolute_path, metavar="DIR", help="folder of the data"
    )
    collect.add_argument(
        "--target", action="append", metavar="URL",
        help="address of metrics to scrape, as http://engine:8000/metrics; may be repeated",
    )  # fmt: skip
    collect.add_argument(
        "--link", action="append", metavar="NAME=URL",
        help="link from a request's page to another tool, as "
        "Jaeger=https://jaeger/trace/{trace_id}; may be repeated",
    )  # fmt: skip
    # Without a default: the configuration file may name one.
    collect.add_argument(
        "--budget", type=arguments.absolute_path, metavar="FILE", help="latency budget"
    )
    for name, words in (
        ("web", "the live page, /metrics and the API"),
        ("otlp-http", "OTLP over HTTP"),
        ("otlp-grpc", "OTLP over gRPC"),
    ):
        collect.add_argument(
            f"--{name}", metavar="ADDRESS", help=f"address of {words}: host:port, port, or off"
        )
    instead = collect.add_mutually_exclusive_group()
    instead.add_argument(
        "--check", action="store_true", help="check the settings, and do nothing else"
    )
    instead.add_argument(
        "--print-config", action="store_true",
        help="print the effective configuration, without secrets",
    )  # fmt: skip


def _collect(options: argparse.Namespace) -> None:
    flags = {
        ("data",): options.data_dir,
        ("budget",): options.budget,
        ("scrape", "targets"): options.target,
        ("links",): options.link,
        ("listen", "web"): options.web,
        ("listen", "otlp_http"): options.otlp_http,
        ("listen", "otlp_grpc"): options.otlp_grpc,
    }
    # gRPC reads it when it is loaded; its line for each failed handshake is none of our log.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    collector_module("commands.collect", "llmtrace collect").run(
        options.config, flags, check=options.check, print_config=options.print_config
    )


def add_quarantine(commands: arguments.Commands) -> None:
    """Declare `llmtrace quarantine`."""
    quarantine = arguments.add_command(
        commands,
        "quarantine",
        _quarantine,
        "list requests that a collector's store rejected, and replay them",
        "List the requests that a running collector accepted and its store rejected: when, how "
        "large, and the store's reason. They are in the folder `spool/quarantine` of its data, "
        "each as an OTLP request in a file.",
        examples=("llmtrace quarantine", "llmtrace quarantine --replay"),
        docs="operate/receiving.md",
    )
    arguments.add_collector(quarantine)
    quarantine.add_argument(
        "--replay", action="store_true",
        help="store them now; what is rejected again stays in quarantine",
    )  # fmt: skip
    arguments.add_json(quarantine, "a table")


def _quarantine(options: argparse.Namespace) -> None:
    collector_module("commands.quarantined", "llmtrace quarantine").run(
        options.url, token_file=options.token_file, replay=options.replay, as_json=options.json
    )


def add_top(commands: arguments.Commands) -> None:
    """Declare `llmtrace top`."""
    top = arguments.add_command(
        commands,
        "top",
        _top,
        "show stages, budget and engines as they are now",
        "Show a running collector on the terminal: each stage's p95 against the budget, the "
        "engines, the outcomes of requests, the slowest of them. Ctrl-C ends it.",
        examples=("llmtrace top", "llmtrace top --url http://127.0.0.1:4319 --once"),
        docs="operate/collector.md",
    )
    arguments.add_collector(top)
    top.add_argument(
        "--interval", type=arguments.positive(float), default=2.0, metavar="S",
        help="seconds between two refreshes (default: 2)",
    )  # fmt: skip
    top.add_argument("--once", action="store_true", help="print once, and exit")


def _top(options: argparse.Namespace) -> None:
    collector_module("commands.top", "llmtrace top").run(
        options.url, token_file=options.token_file, interval_s=options.interval, once=options.once
    )
