"""Run the commands that run the collector, show it, and check what it would scrape."""

from __future__ import annotations

import argparse

from llmtrace.cli.extras import collector_module


def run_doctor(options: argparse.Namespace) -> None:
    """Run `llmtrace doctor` as its options say."""
    collector_module("commands.doctor", "llmtrace doctor").run(
        options.url,
        token_file=options.token_file,
        timeout_s=options.timeout,
        ask=options.ask,
        profiles=options.profiles,
        as_json=options.json,
    )


def run_collect(options: argparse.Namespace) -> None:
    """Run `llmtrace collect` as its options say."""
    flags = {
        ("data",): options.data_dir,
        ("budget",): options.budget,
        ("scrape", "targets"): options.target,
        ("links",): options.link,
        ("listen", "web"): options.web,
        ("listen", "otlp_http"): options.otlp_http,
        ("listen", "otlp_grpc"): options.otlp_grpc,
    }
    collector_module("commands.collect", "llmtrace collect").run(
        options.config, flags, check=options.check, print_config=options.print_config
    )


def run_quarantine(options: argparse.Namespace) -> None:
    """Run `llmtrace quarantine` as its options say."""
    collector_module("commands.quarantined", "llmtrace quarantine").run(
        options.url, token_file=options.token_file, replay=options.replay, as_json=options.json
    )


def run_top(options: argparse.Namespace) -> None:
    """Run `llmtrace top` as its options say."""
    collector_module("commands.top", "llmtrace top").run(
        options.url, token_file=options.token_file, interval_s=options.interval, once=options.once
    )
