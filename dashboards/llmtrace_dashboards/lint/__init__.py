"""Lint dashboards: llmtrace's own, or any other."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from llmtrace.errors import ConfigError, DataError
from llmtrace_dashboards.lint.finding import Finding
from llmtrace_dashboards.lint.rules import OPTIONAL, RULES

__all__ = ["Finding", "lint", "read"]

_MAX_BYTES: Final = 16 << 20


def lint(
    dashboard: Mapping[str, Any], exclude: Collection[str] = (), *, optional: bool = False
) -> list[Finding]:
    """Return what is wrong with a dashboard in the classic format, errors first.

    Args:
        dashboard: its JSON.
        exclude: rules to leave out, by name.
        optional: run the rules about variables for `job` and `instance` too.

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
        DataError: it cannot be read, or is no dashboard in the classic format.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than 16 MiB, which no dashboard is")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("dashboard"), dict):
        content = content["dashboard"]
    if not isinstance(content, dict):
        raise DataError(f"{path}: a dashboard is a JSON object")
    if "elements" in content or "spec" in content:
        raise DataError(f"{path}: a dashboard in the v2 format; export it in the classic one")
    if not isinstance(content.get("panels", content.get("rows")), list):
        raise DataError(f"{path}: no dashboard: it has no panels")
    return content
