"""Import a module of the collector or the dashboards, which this package knows by name alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llmtrace.core.errors import missing_extra


def collector_module(module: str, feature: str) -> Any:
    """Return a module of the collector."""
    return _module("llmtrace_collector", module, feature)


def dashboards_module(module: str, feature: str) -> Any:
    """Return a module of the dashboards."""
    return _module("llmtrace_dashboards", module, feature)


def _module(package: str, module: str, feature: str) -> Any:
    try:
        return import_module(f"{package}.{module}")
    except ImportError as error:
        if (error.name or "").startswith(f"{package}."):
            raise  # the package is there and lacks a module: that is our own mistake
        extra = package.removeprefix("llmtrace_")
        raise missing_extra(feature, extra, error.name or package) from error
