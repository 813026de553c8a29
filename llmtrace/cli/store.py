"""Declare the commands that print a store's tables and copy one store to another."""

from __future__ import annotations

import argparse

from llmtrace.cli.arguments import Commands, add_command
from llmtrace.cli.extras import collector_module


def add_schema(commands: Commands) -> None:
    """Declare `llmtrace schema`."""
    schema = add_command(
        commands,
        "schema",
        _schema,
        "print the tables and views for a ClickHouse of your own",
        "Print the statements that make the collector's tables, and the view that joins requests, "
        "for a ClickHouse that an OpenTelemetry Collector writes to: no llmtrace process is "
        "needed then.",
        examples=(
            "llmtrace schema clickhouse > tables.sql",
            "llmtrace schema clickhouse --cluster prod --from 1",
        ),
        docs="operate/store.md",
    )
    schema.add_argument("engine", choices=("clickhouse",), help="kind of database")
    schema.add_argument(
        "--database",
        default="llmtrace",
        metavar="NAME",
        help="name of the database (default: llmtrace)",
    )
    schema.add_argument(
        "--cluster", metavar="NAME", help="cluster to replicate and distribute over"
    )
    schema.add_argument(
        "--from", dest="since", type=int, metavar="N",
        help="version of the existing schema (in its table schema_versions; 1 if it has none): "
        "print the statements that bring it to the present one",
    )  # fmt: skip


def _schema(options: argparse.Namespace) -> None:
    printed = collector_module("store.ddl", "llmtrace schema")
    print(printed.schema(options.database, options.cluster, since=options.since), end="")


def add_migrate(commands: Commands) -> None:
    """Declare `llmtrace migrate`."""
    migrate = add_command(
        commands,
        "migrate",
        _migrate,
        "copy all data of one store to another",
        "Copy spans, rows, signals, events and facts from one store to another, and count both "
        "sides. Started again after an interruption it stores nothing twice. Stop the collector "
        "of the store that is read. A store is a folder, chdb:///path, or "
        "http(s)://[user@]host:port/database, whose password is in CLICKHOUSE_PASSWORD or in "
        "the file that CLICKHOUSE_PASSWORD_FILE names.",
        examples=(
            "llmtrace migrate --from /var/lib/llmtrace --to https://user@host:8443/llmtrace",
        ),
        docs="operate/store.md",
    )
    migrate.add_argument(
        "--from", dest="source", required=True, metavar="STORE", help="store to read"
    )
    migrate.add_argument(
        "--to", dest="destination", required=True, metavar="STORE", help="store to write"
    )


def _migrate(options: argparse.Namespace) -> None:
    collector_module("store.migrate", "llmtrace migrate").run(options.source, options.destination)
