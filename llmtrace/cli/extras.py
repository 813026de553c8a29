"""Which module of a package that is built on this one does a command call?"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llmtrace.errors import missing_extra


def collector_module(module: str, feature: str) -> Any:
    """Return a module of the collector, which is built on this package: known by name alone."""
    try:
        return import_module(f"llmtrace_collector.{module}")
    except ImportError as error:
        raise missing_extra(feature, "collector", error.name or "llmtrace_collector") from error


def dashboards_module(module: str, feature: str) -> Any:
    """Return a module of the dashboards, which are built on this package: known by name alone."""
    try:
        return import_module(f"llmtrace_dashboards.{module}")
    except ImportError as error:
        raise missing_extra(feature, "dashboards", error.name or "llmtrace_dashboards") from error
