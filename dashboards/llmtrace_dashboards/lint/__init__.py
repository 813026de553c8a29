"""Lint dashboards: llmtrace's own, or any other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import ConfigError, DataError
from llmtrace.core.json_object import read_object
from llmtrace_dashboards.lint.finding import Finding
from llmtrace_dashboards.lint.rules import OPTIONAL, RULES

__all__ = ["Finding", "lint", "read"]

_MAX_BYTES: Final = 16 << 20


def lint(
    dashboard: Mapping[str, Any], exclude: Collection[str] = (), *, optional: bool = False
) -> list[Finding]:
    """Return what is wrong with a dashboard in the classic format, errors first.

    Rules named in `exclude` are left out; `optional` ones are about variables for `job` and
    `instance`.

    Raises:
        ConfigError: there is no such rule.
    """
    unknown = sorted(set(exclude) - set(RULES))
    if unknown:
        raise ConfigError(f"no rule {', '.join(unknown)}; the rules are {', '.join(RULES)}")
    left_out = {*exclude, *(() if optional else OPTIONAL)}
    found = {
        Finding(name, severity, where, message): None  # each once, in this order
        for name, (rule, severity) in RULES.items()
        if name not in left_out
        for where, message in rule(dashboard)
    }
    return sorted(found, key=lambda one: one.severity)


def read(path: Path) -> dict[str, Any]:
    """Read a dashboard from a file: as exported, or as Grafana's API returns it.

    Raises:
        SourceError: it cannot be read.
        DataError: it is no dashboard in the classic format.
    """
    content = read_object(path, _MAX_BYTES)
    if isinstance(content.get("dashboard"), dict):
        content = content["dashboard"]
    if "elements" in content or "spec" in content:
        raise DataError(f"{path}: a dashboard in the v2 format; export it in the classic one")
    if not isinstance(content.get("panels", content.get("rows")), list):
        raise DataError(f"{path}: no dashboard: it has no panels")
    return content
