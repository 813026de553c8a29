"""Run the commands that print a store's tables and copy one store to another."""

from __future__ import annotations

import argparse

from llmtrace.cli.extras import collector_module


def run_schema(options: argparse.Namespace) -> None:
    """Run `llmtrace schema` as its options say."""
    printed = collector_module("store.ddl", "llmtrace schema")
    print(printed.schema(options.database, options.cluster, since=options.since), end="")


def run_migrate(options: argparse.Namespace) -> None:
    """Run `llmtrace migrate` as its options say."""
    collector_module("store.migrate", "llmtrace migrate").run(options.source, options.destination)
