"""Fill in the variables of a dashboard's query, and parse the PromQL that results.

Grafana puts values into `$name`, `${name}`, `${name:format}` and `[[name]]` before a query is
sent. Sample values are put in, so that what is left is PromQL and can be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.errors import needs_extra

with needs_extra("llmtrace dashboards lint", "dashboards", "promql-parser"):
    import promql_parser as promql

# `$1` is a regular expression's group, and stays.
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::[^}]*)?\}|\$([A-Za-z_]\w*)|\[\[(\w+)(?::[^\]]*)?\]\]")
# A variable where PromQL wants a duration: in a range, or after `offset`.
_DURATION: Final = re.compile(r"(?:\[|:|\boffset\s+-?)\s*$")
_BUILT_IN: Final = {
    "__rate_interval": "1m",
    "__interval": "15s",
    "__interval_ms": "15000",
    "__rate_interval_ms": "60000",
    "__range": "1h",
    "__range_s": "3600",
    "__range_ms": "3600000",
}
_STAND_IN: Final = "x"
_ANY_DURATION: Final = "1h"


def expand(expression: str, values: Mapping[str, str]) -> str:
    """Put values in place of variables, and sample values of the right kind where none is known.

    Example:
        >>> expand('sum by ($by) (rate(a{b=~"$b"}[$__rate_interval] offset $past))', {"by": "c"})
        'sum by (c) (rate(a{b=~"x"}[1m] offset 1h))'
    """

    def put(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[3]
        if name in values:
            return values[name]
        if name in _BUILT_IN:
            return _BUILT_IN[name]
        if _DURATION.search(expression[: match.start()]):
            return _ANY_DURATION
        return _STAND_IN

    return _VARIABLE.sub(put, expression)


@dataclass(frozen=True, slots=True)
class Selected:
    """One selector in an expression.

    Attributes:
        metric: its name; empty = chosen by labels alone.
        matchers: label, operator and value of each.
        functions: those it is inside of, from the outside in.
        ranged: whether it is over a range.
    """

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    functions: tuple[str, ...]
    ranged: bool


_OPERATORS: Final = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def selectors(expression: str) -> list[Selected]:
    """Return every selector of an expression, parsed.

    Raises:
        ValueError: it is no PromQL; says why.
    """
    return [*_walk(promql.parse(expression), ())]


def _walk(node: Any, inside: tuple[str, ...]) -> Iterator[Selected]:
    match node:
        case promql.VectorSelector():
            yield _selected(node, inside, ranged=False)
        case promql.MatrixSelector():
            yield _selected(node.vector_selector, inside, ranged=True)
        case promql.Call():
            for argument in node.args:
                yield from _walk(argument, (*inside, node.func.name))
        case promql.BinaryExpr():
            yield from _walk(node.lhs, inside)
            yield from _walk(node.rhs, inside)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr():
            yield from _walk(node.expr, inside)
        case promql.SubqueryExpr():
            yield from _walk(node.expr, (*inside, "subquery"))
        case _:
            return


def _selected(node: Any, inside: tuple[str, ...], *, ranged: bool) -> Selected:
    matchers = tuple(
        (one.name, _OPERATORS[str(one.op).rpartition(".")[2]], one.value)
        for one in node.matchers.matchers
    )
    name = node.name or next(
        (value for label, op, value in matchers if label == "__name__" and op == "="), ""
    )
    return Selected(name, matchers, inside, ranged)


# --- in a dashboard -----------------------------------------------------------------------------


def chosen(dashboard: Mapping[str, Any]) -> dict[str, str]:
    """Return what a dashboard's variables stand at: the first choice, `.*` for all, or nothing."""
    found: dict[str, str] = {}
    for variable in variables(dashboard):
        name, kind = str(variable.get("name", "")), str(variable.get("type"))
        current = variable.get("current")
        value = current.get("value") if isinstance(current, Mapping) else None
        if isinstance(value, list):
            value = value[0] if value else None
        if value == "$__all":
            value = variable.get("allValue") or ".*"
        if kind in {"custom", "interval", "textbox", "constant"} and not value:
            value = str(variable.get("query", "")).partition(",")[0].strip()
        if isinstance(value, str) and value and not value.startswith("$__auto"):
            found[name] = value
    return found


def variables(dashboard: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a dashboard's variables."""
    templating = dashboard.get("templating")
    return objects(templating, "list") if isinstance(templating, Mapping) else []


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every panel, those inside rows too; rows themselves are none."""
    for panel in objects(dashboard, "panels"):
        if panel.get("type") == "row":
            yield from objects(panel, "panels")
        else:
            yield panel
    for row in objects(dashboard, "rows"):  # of Grafana before 5
        yield from objects(row, "panels")


def targets(panel: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the queries of a panel, as its JSON has them."""
    return objects(panel, "targets")


def objects(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects in a list of a dashboard's JSON; anything else counts as none."""
    listed = content.get(key)
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
