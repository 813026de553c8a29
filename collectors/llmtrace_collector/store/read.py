"""Read the store: rows and statistics, as the read API and the web pages return them.

Each function reads a bounded time range, and yields large results page by page, so that reading a
day takes no more memory than reading a minute. Rows are as `Row.as_dict` has them. Times are unix
nanoseconds, and the end of a range is not in it; filters are by the names in `FILTERS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from llmtrace.core.row import TURN
from llmtrace.core.stages import PARTITION, STAGES
from llmtrace_collector.store.clickhouse_store import StoreReader
from llmtrace_collector.store.row_columns import FIELDS
from llmtrace_collector.store.sql_builder import from_file

_NS: Final = 1_000_000_000
_MS: Final = 1_000
_PAGE: Final = 5_000
_SLICE_NS: Final = 600 * _NS
_MAX_SPANS: Final = 2_000
_MAX_ROWS: Final = 200
_LESS: Final = 1e-9
# How long one statement of a server's own join may take to write its rows.
_BLIND_S: Final = 120

# The fields that rows may be filtered by: equal to a text.
FILTERS: Final = (
    "model", "route", "service", "region", "tenant", "replica", "version", "outcome", "provider",
    "server", "gateway", "client", "operation", "finish_reason", "error_type",
)  # fmt: skip
METRICS: Final = ("ttft", "tpot", "e2e")
MEASURED: Final = (*PARTITION, *METRICS)
SLOWEST_BY: Final = ("e2e", "ttft", "tpot", *PARTITION)
_DERIVED: Final = ("ttft_arrival_s", "tpot_s", "retry_s")

Filters = Mapping[str, str]
Place = tuple[int, str, str]  # a row's start (unix ns), trace id and span id


def rows(
    store: StoreReader,
    start_ns: int,
    end_ns: int,
    filters: Filters | None = None,
    *,
    limit: int | None = None,
    after: Place | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of requests and turns that began in a time range, by their start.

    At most `limit` (`None` = all), and only those after the row at `after`.
    """
    where, given = where_of(filters)
    columns, known_ns = _COLUMNS, 0
    if (limit is None or limit > _PAGE) and (known_ns := _written(store)):
        selection = f"{BETWEEN}{where}"
        columns = _selected(store, selection, _between(start_ns, end_ns, given))
    left = limit
    while left is None or left > 0:
        ask = _PAGE if left is None else min(_PAGE, left)
        begin, parameters = start_ns, {**given, "until": end_ns}
        words = BETWEEN
        if after is not None:
            begin = max(begin, after[0])
            parameters |= {"after": after[0], "trace": after[1], "span": after[2]}
            words += f" AND {_BEHIND}"
        parameters["since"] = begin
        order = f"ORDER BY start, trace_id, span_id LIMIT {ask}"
        page = flat_rows(store, f"{words}{where} {order}", parameters, columns, known_ns)
        yield from page
        if len(page) < ask:
            return
        left = None if left is None else left - len(page)
        last = page[-1]
        after = last["start"], last["trace_id"], last["span_id"]


def _written(store: StoreReader) -> int:
    """Return the version up to which all rows are visible; 0 = not known."""
    [(_, version)] = store.query(from_file("written_until"))
    return int(version)


def settled(store: StoreReader, settle_s: float) -> int:
    """Return the last version of rows that was written at least `settle_s` ago; 0 = none was.

    Versions are a sequence: setting the clock does not change their order.
    """
    given = {"settle": round(settle_s * _MS), "blind": _BLIND_S * _MS}
    [(version,)] = store.query(from_file("settled_version"), given)
    return int(version)


def joined_until_ns(store: StoreReader) -> int:
    """Return up to when parts were joined, in unix ns by the clock at that time; 0 = never."""
    [(until, _)] = store.query(from_file("written_until"))
    return int(until)


def settled_before(store: StoreReader, settle_s: float) -> int:
    """Return the version that had settled when the last one was written."""
    given = {"settle": round(settle_s * _MS)}
    [(version,)] = store.query(from_file("settled_before"), given)
    return int(version)


def changed(store: StoreReader, since: int, until: int) -> Iterator[dict[str, Any]]:
    """Yield the rows whose last version is after `since` and up to `until`."""
    given: dict[str, object] = {"since": since, "until": until}
    [(began,)] = store.query(from_file("first_changed"), given)
    yield from flat_rows(store, from_file("rows_changed"), {"began": int(began), **given})


def slowest(
    store: StoreReader,
    start_ns: int,
    end_ns: int,
    filters: Filters | None = None,
    *,
    by: str = "e2e",
    limit: int = 20,
) -> list[dict[str, Any]]:
    """Return the rows of requests that took longest by one of `SLOWEST_BY`, longest first."""
    where, given = where_of(filters)
    condition = f"{BETWEEN} AND {_REQUESTS}{where}"
    chosen = store.query(
        from_file("slowest_requests", where=condition, column=column_of(by), limit=f"{limit:d}"),
        _between(start_ns, end_ns, given),
    )
    if not chosen:
        return []
    traces, spans = zip(*chosen, strict=True)
    found = flat_rows(
        store,
        f"{BETWEEN} AND {_CHOSEN}",
        _between(start_ns, end_ns, {"traces": [*traces], "spans": [*spans]}),
    )
    order = {pair: place for place, pair in enumerate(chosen)}
    placed = [row for row in found if (row["trace_id"], row["span_id"]) in order]
    return sorted(placed, key=lambda row: order[row["trace_id"], row["span_id"]])


def request(store: StoreReader, name: str) -> list[dict[str, Any]]:
    """Return the rows that have this request, response or trace id, by time."""
    where = f"{HAS_ID} ORDER BY start, span_id LIMIT {_MAX_ROWS}"
    return flat_rows(store, where, {"name": name})


def trace(store: StoreReader, trace_id: str) -> dict[str, Any]:
    """Return one trace by its id (lower case): its rows, and its spans while they are kept."""
    given = {"trace": trace_id}
    spans = store.query(from_file("spans_of_trace", limit=str(_MAX_SPANS)), given)
    names = ("span_id", "parent_span_id", "name", "service", "kind", "start", "duration_s",
             "status", "status_message", "attributes")  # fmt: skip
    listed = [dict(zip(names, span, strict=True)) for span in spans]
    for span in listed:
        span["start"] = int(span["start"])
        span["duration_s"] = int(span["duration_s"]) / _NS
    return {
        "trace_id": trace_id,
        "rows": flat_rows(
            store, f"trace_id = {{trace:String}} ORDER BY start, span_id LIMIT {_MAX_ROWS}", given
        ),
        "spans": listed,
    }


def stage_percentiles(
    store: StoreReader,
    start_ns: int,
    end_ns: int,
    filters: Filters | None = None,
    *,
    step_s: int = 60,
    of: Sequence[str] = MEASURED,
) -> list[dict[str, Any]]:
    """Return percentiles of stages and metrics per time step, of requests that succeeded.

    The cost grows with the number of names in `of`.

    Returns:
        For each step in which a request began: `t` (unix seconds), `requests` by outcome, and by
        stage or metric how many report it (`known`), `p50_s`, `p95_s` and `p99_s`.
    """
    where, given = where_of(filters)
    found = {"step": str(int(step_s) * _NS), "where": f"{BETWEEN} AND {_REQUESTS}{where}"}
    between = _between(start_ns, end_ns, given)
    outcomes: dict[int, dict[str, int]] = {}
    for at, outcome, count in store.query(from_file("outcomes_by_step", **found), between):
        outcomes.setdefault(int(at), {})[str(outcome)] = int(count)
    levels = ", ".join(map(level, (0.5, 0.95, 0.99)))
    figures = ", ".join(
        f"count({column_of(name)}), quantilesExact({levels})({column_of(name)})" for name in of
    )
    counted = store.query(from_file("percentiles_by_step", figures=figures, **found), between)
    stages = {int(row[0]): _percentiles(row, of) for row in counted}
    none = _percentiles([0, *((0, (0, 0, 0)) * len(of))], of)
    return [
        {"t": at * step_s, "requests": counts, "stages": stages.get(at, none)}
        for at, counts in outcomes.items()
    ]


def level(q: float) -> str:
    """Return the level at which `quantileExact` gives the nearest rank, as `llmtrace.stats.quantiles`.

    It takes the value at index n * q, rounded down: one too high where that is a whole number.
    """
    return f"{q - _LESS:.10f}"


def _percentiles(row: Sequence[Any], of: Sequence[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for place, name in enumerate(of):
        known, quantiles = row[1 + 2 * place], row[2 + 2 * place]
        figures[name] = {"known": int(known)} | {
            p: float(value) / _NS if known else None
            for p, value in zip(("p50_s", "p95_s", "p99_s"), quantiles, strict=True)
        }
    return figures


def coverage(store: StoreReader, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return how much of each stage is known, and from which sources.

    Returns:
        `requests`, how many have each kind of part (`reported_by`), how many had a figure that did not
        fit (`inconsistent`), and by stage how many report it (`known`), by source (`sources`).
    """
    sources = ", ".join(
        f"count({stage}_ns), sumMapIf(map(toString({stage}_source), toUInt64(1)),"
        f" {stage}_source != '')"
        for stage in STAGES
    )
    [row] = store.query(
        from_file("coverage", sources=sources, where=f"{BETWEEN} AND {_REQUESTS}"),
        _between(start_ns, end_ns, {}),
    )
    kinds, counts = row[1]
    return {
        "requests": int(row[0]),
        "reported_by": {str(kind): int(count) for kind, count in zip(kinds, counts, strict=True)},
        "inconsistent": int(row[2]),
        "stages": {
            stage: {
                "known": int(row[3 + 2 * place]),
                "sources": {who: int(n) for who, n in row[4 + 2 * place].items()},
            }
            for place, stage in enumerate(STAGES)
        },
    }


def signals(
    store: StoreReader, start_ns: int, end_ns: int, *, instance: str | None = None,
    signal: str | None = None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield samples of engines, gateways and GPUs by time: `t` in unix seconds."""
    given: dict[str, object] = {}
    words = ""
    for name, value in (("instance", instance), ("signal", signal)):
        if value is not None:
            given[name] = value
            words += f" AND {name} = {{{name}:String}}"
    # In slices of time, since a sample has no key to continue from.
    begin = start_ns
    while begin < end_ns:
        found = store.query(
            from_file("signals", conditions=words),
            {**given, "since": begin, "until": min(begin + _SLICE_NS, end_ns)},
        )
        begin += _SLICE_NS
        if not found and begin < end_ns:
            # Skip to the next sample, over any gap.
            [(count, first)] = store.query(
                from_file("first_signal", conditions=words),
                {**given, "since": begin, "until": end_ns},
            )
            begin = max(begin, int(first) * 10**6) if int(count) else end_ns
        for t, whose, what, value, labels in found:
            yield {
                "t": int(t) / _MS, "instance": whose, "signal": what, "value": value,
                "labels": labels,
            }  # fmt: skip


def events(store: StoreReader, start_ns: int, end_ns: int) -> Iterator[dict[str, Any]]:
    """Yield events by time: `t` in unix seconds."""
    found = store.query(from_file("events"), {"since": start_ns, "until": end_ns})
    for t, kind, text, instance, labels in found:
        event = {"t": int(t) / _MS, "kind": kind, "text": text}
        yield (
            event
            | ({"instance": instance} if instance else {})
            | ({"labels": labels} if labels else {})
        )


def facts(store: StoreReader, at_ns: int) -> dict[str, dict[str, Any]]:
    """Return the facts about each engine at a moment (unix nanoseconds), by instance."""
    found = store.query(from_file("facts"), {"at": at_ns})
    return {str(instance): json.loads(text) for instance, text in found}


# --- a stored row as `Row.as_dict` has it --------------------------------------------------------

BETWEEN: Final = from_file("began_within")
HAS_ID: Final = from_file("has_id")
_BEHIND: Final = from_file("began_behind")
_CHOSEN: Final = from_file("rows_by_ids")
_REQUESTS: Final = f"operation != '{TURN}'"


def _between(start_ns: int, end_ns: int, more: Mapping[str, object]) -> dict[str, object]:
    return {**more, "since": start_ns, "until": end_ns}


def where_of(filters: Filters | None) -> tuple[str, dict[str, object]]:
    """Return the SQL condition of filters, to append to another one, and its parameters."""
    words, given = "", {}
    for name, value in (filters or {}).items():
        if name not in FILTERS:
            raise KeyError(name)
        given[f"is_{name}"] = value
        words += f" AND {name} = {{is_{name}:String}}"
    return words, dict[str, object](given)


def column_of(name: str) -> str:
    """Return the expression of a stage or metric in nanoseconds."""
    return "(tpot_s * 1e9)" if name == "tpot" else f"{name}_ns"


def _seconds(ns: Any) -> float:
    return int(ns) / _NS


def _browser(fields: Mapping[str, str]) -> dict[str, Any]:
    def value(name: str, text: str) -> Any:
        if name.endswith("_s"):
            return float(text)
        return int(text) if text.isdecimal() else text

    return {name: value(name, text) for name, text in fields.items() if text != ""}


def _marks(when: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def flat(marks: Mapping[str, Any]) -> dict[str, Any]:
        return {f"marked_{when}_{stage}_s": _seconds(ns) for stage, ns in marks.items()}

    return flat


# How columns are converted that are not a single value of the same name.
_UNFOLDED: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "browser": _browser,
    "marked_before": _marks("before"),
    "marked_after": _marks("after"),
    "attributes": lambda own: {"attributes": own} if own else {},
}
_NAMES: Final = tuple(field.name for field in FIELDS)
_STAGES: Final = tuple(f"{stage}_{what}" for stage in STAGES for what in ("ns", "source"))
_OTHERS: Final = ("parent_span_id", "service", "reported_by", "inconsistent", "unattributed_ns")
_COLUMNS: Final = (*_OTHERS, *_NAMES, *_STAGES, *_DERIVED)
# Left out where they are 0, which here does not mean unknown.
_UNLESS_NONE: Final = frozenset(
    {"held_before_ns", "held_after_ns", "retry_network_ns", "retry_gateway_ns", "unsplit_ns"}
)


def _selected(store: StoreReader, where: str, parameters: Mapping[str, object]) -> tuple[str, ...]:
    """Return the columns in which any of these rows has a value.

    There are about a hundred, and hardly any row has more than forty: leaving out the others makes
    reading many rows twice as fast.
    """
    counted = {
        name: counting for name in _COLUMNS if (counting := _COUNTING.get(name)) is not None
    }
    query = from_file("count_requests", figures=", ".join(counted.values()), where=where)
    [counts] = store.query(query, parameters)
    silent = {name for name, count in zip(counted, counts, strict=True) if not int(count)}
    return tuple(name for name in _COLUMNS if name not in silent)


def _count_values(name: str, kind: str) -> str | None:
    """Return the expression that counts the rows with a value; `None` = all of them have one."""
    if kind.startswith("Nullable"):
        return f"count({name})"
    if kind.startswith(("Map", "Array")):
        return f"countIf(notEmpty({name}))"
    if name in _UNLESS_NONE:
        return f"countIf({name} != 0)"
    if "String" in kind or kind.startswith("Enum"):
        return f"countIf(toString({name}) != '')"
    return None


_COUNTING: Final = {
    **{field.name: _count_values(field.name, field.type) for field in FIELDS},
    **{f"{stage}_ns": f"count({stage}_ns)" for stage in STAGES},
    **{f"{stage}_source": f"countIf(toString({stage}_source) != '')" for stage in STAGES},
}


def flat_rows(
    store: StoreReader,
    where: str,
    parameters: Mapping[str, object],
    columns: Sequence[str] = _COLUMNS,
    known_ns: int = 0,
) -> list[dict[str, Any]]:
    """Return the rows of a condition; only `columns`, unless a row is newer than `known_ns`."""
    found = store.query(from_file("rows", columns=", ".join(columns), where=where), parameters)
    if columns is not _COLUMNS and any(int(row[3]) > known_ns for row in found):
        return flat_rows(store, where, parameters)  # it may have a value in another column
    return [flat_row(row, columns) for row in found]


def flat_row(row: Sequence[Any], columns: Sequence[str]) -> dict[str, Any]:
    """Convert a row of start, two ids, version and `columns` into that of `Row.as_dict`."""
    flat: dict[str, Any] = {"start": int(row[0]), "trace_id": row[1], "span_id": row[2]}
    for name, value in zip(columns, row[4:], strict=True):
        if value is None or value in ("", []):
            continue
        if name in _UNFOLDED:
            flat |= _UNFOLDED[name](value)
        elif name.endswith("_ns"):
            if value or name not in _UNLESS_NONE:
                flat[f"{name.removesuffix('_ns')}_s"] = _seconds(value)
        elif name == "unwatched":
            if value:
                flat[name] = True
        elif name.endswith("_s") or name == "weight":
            flat[name] = float(value)  # JSON writes 1 for 1.0
        else:
            flat[name] = value
    return flat
